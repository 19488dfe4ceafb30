// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/backward.hpp"

#include <ATen/ops/full_like.h>

#include <tuple>

#include "accelerate/base/heartbeat.hpp"
#include "accelerate/device/out_of_memory_error.hpp"
#include "accelerate/prepared/loss_scaling.hpp"
#include "accelerate/prepared/memory_inventory.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/optimizer.hpp"
#include "accelerate/prepared/sharded_optimizer_state.hpp"
#include "accelerate/sharding/fully_sharded_parameters.hpp"

namespace accelerate::prepared {

void check_has_autograd_graph(AcceleratorState& shared, const at::Tensor& loss) {
  if (loss.requires_grad()) return;
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    if (model.options().pipeline == nullptr) continue;
    base::fail(
        ErrorKind::usage, shared.place, "backward",
        "the loss has no autograd graph, because train_step() of a Pipeline has already run the backward; remove "
        "this call of backward()");
  }
}

void begin_backward(AcceleratorState& shared) {
  shared.window.scope.begin_backward(shared.active_loader(), shared.window.options.steps, shared.place);
  shared.watch.begin_backward(shared);
  ++shared.backwards;
}

void check_loss_is_not_nan(const AcceleratorState& shared, const at::Tensor& loss) {
  if (!shared.stop_at_nan_loss || !loss.isnan().item<bool>()) return;
  base::fail(ErrorKind::data, shared.place, "backward",
             "the loss of step {} (call {} of backward()) is nan, must be a number; look at this batch and at the "
             "learning rate",
             shared.steps + 1, shared.backwards);
}

at::Tensor backward_seed(const AcceleratorState& shared, const at::Tensor& loss, double weight) {
  if (shared.scaling) return shared.scaling->seed(loss, weight);
  return weight == 1.0 ? at::Tensor() : at::full_like(loss, weight);
}

void run_with_reducers(AcceleratorState& shared, Run backward) {
  std::vector<gradient::GradientReducer*> gradient_reducers;
  std::vector<sharding::FullyShardedParameters*> sharded;
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    if (model.gradient_reducer() != nullptr) gradient_reducers.push_back(model.gradient_reducer());
    if (model.fully_sharded() != nullptr) sharded.push_back(model.fully_sharded());
  }
  const auto run_sharded = [&] {
    if (sharded.empty()) return backward();
    sharding::FullyShardedParameters::run_backward(sharded, backward);
  };
  if (gradient_reducers.empty()) return run_sharded();
  gradient::run_backward(gradient_reducers, shared.group, run_sharded);
}

void run_backward(AcceleratorState& shared, Run backward, c10::function_ref<void(Run)> reduced) {
  check_sharded_models_are_stepped(shared);
  if (shared.scaling) shared.scaling->begin_backward();
  const auto run = [&] {
    if (!shared.window.is_last_of_several()) return backward();
    for (OptimizerCore& one : shared.registry.of<OptimizerCore>()) {
      std::ignore = one.parameters_version();  // looks up the models, which may have been prepared again
      one.begin_backward();
    }
    backward();
    for (OptimizerCore& one : shared.registry.of<OptimizerCore>()) one.backward_done();
  };
  device::with_out_of_memory_report(
      shared.place, "backward", [&] { reduced(run); }, [&] { return memory_inventory(shared); });
  if (shared.scaling) shared.scaling->backward_done();
  shared.watch.backward_done(shared);
  shared.window.backward_done();
  base::record_heartbeat_step();
}

}  // namespace accelerate::prepared

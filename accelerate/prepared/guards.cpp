// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/guards.hpp"

#include <algorithm>
#include <unordered_set>

#include "accelerate/gradient/clip.hpp"
#include "accelerate/prepared/optimizer.hpp"
#include "accelerate/sharding/fully_sharded_parameters.hpp"

namespace accelerate::prepared {
namespace {

template <typename Do>
void each_model(AcceleratorState& shared, const Do& act) {
  for (ModelCore& model : shared.registry.of<ModelCore>()) act(model);
}

// Decides for the new micro-batch and for every model, so that ranks agree even if one of them does not call a model.
void begin_micro_batch(AcceleratorState& shared, const ModelCores& models) {
  const state::BatchInfo* loader = shared.active_loader();
  const auto decision = shared.window.begin(loader != nullptr && loader->last, shared.place);
  // Gradients of earlier micro-batches were divided by the full window length, unless they are still undivided sums.
  // This micro-batch is divided by the correct length at once.
  if (decision.scale != 1.0 && shared.window.count.undivided() == 0) scale_gradients(shared.registry, decision.scale);
  if (shared.window.is_last_of_several()) {
    for (OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) optimizer.begin_final_micro_batch();
  }
  const auto held_back = [&](const ModelCore& model) {
    return !decision.reduce &&
           std::any_of(models.begin(), models.end(), [&](const auto& one) { return one.get() == &model; });
  };
  each_model(shared, [&](ModelCore& model) { model.open_window(!held_back(model)); });
  each_model(shared, [](ModelCore& model) { model.synchronize_sharing_models(); });
}

}  // namespace

// Covers parameters of models, because an optimizer may not be prepared, and of optimizers, because their parameters
// may belong to no model.
void scale_gradients(Registry& registry, double factor) {
  std::vector<at::Tensor> parameters;
  std::unordered_set<const void*> seen;
  const auto add = [&](const at::Tensor& parameter) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameters.push_back(parameter);
  };
  for (const ModelCore& model : registry.of<ModelCore>()) {
    for (const auto& parameter : model.parameters()) add(parameter.tensor);
  }
  for (const OptimizerCore& optimizer : registry.of<OptimizerCore>()) {
    for (const auto& group : optimizer.optimizer().param_groups()) {
      for (const auto& parameter : group.params()) add(parameter);
    }
  }
  gradient::scale_gradients(parameters, factor);
  for (const ModelCore& model : registry.of<ModelCore>()) {
    if (model.fully_sharded() != nullptr) model.fully_sharded()->scale_gradients(factor);
  }
}

void drop_gradients(AcceleratorState& shared) {
  shared.window.forget();
  shared.watch.release_all();
  for (OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) optimizer.drop_gradients();
  each_model(shared, [](ModelCore& model) {
    if (model.gradient_reducer() != nullptr) model.gradient_reducer()->zero_all();
    sharding::FullyShardedParameters* sharded = model.fully_sharded();
    if (sharded != nullptr) sharded->zero(sharded->keys(), /*set_to_none=*/true);
    for (const auto& parameter : model.parameters()) parameter.tensor.mutable_grad().reset();
  });
}

NoSyncGuard::NoSyncGuard(ModelCores models) : models_(std::move(models)) {
  for (const auto& model : models_) model->open_no_sync();
}

NoSyncGuard::~NoSyncGuard() {
  for (const auto& model : models_) model->close_no_sync();
}

AccumulateGuard::AccumulateGuard(std::shared_ptr<AcceleratorState> shared, const ModelCores& models)
    : accelerator_state_(std::move(shared)) {
  begin_micro_batch(*accelerator_state_, models);
  accelerator_state_->window.scope.open(accelerator_state_->active_loader());
}

AccumulateGuard::~AccumulateGuard() {
  if (!accelerator_state_) return;
  accelerator_state_->window.scope.close();
  accelerator_state_->window.end_micro_batch();
  each_model(*accelerator_state_, [](ModelCore& model) { model.close_window(); });
}

}  // namespace accelerate::prepared

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/checkpoint_content.hpp"

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "accelerate/base/log.hpp"
#include "accelerate/optim/optimizer_state.hpp"
#include "accelerate/optim/parameter_groups.hpp"
#include "accelerate/prepared/loader.hpp"
#include "accelerate/prepared/loss_scaling.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/optimizer.hpp"
#include "accelerate/prepared/scheduler.hpp"
#include "accelerate/prepared/tensor_parts.hpp"
#include "accelerate/sharding/fully_sharded_parameters.hpp"

namespace accelerate::prepared {

using checkpoint::CheckpointContent;
using checkpoint::NamedTensors;

std::string name_in(const ModelCore& model, const std::string& name) {
  return fmt::format("model.{}/{}", model.index(), name);
}

namespace {

NamedTensors masters_of(AcceleratorState& shared, const WholeWeights& whole) {
  NamedTensors masters;
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    for (const auto& [name, parameter] : model.parameters()) {
      const auto sharded = whole.masters.find(parameter.unsafeGetTensorImpl());
      if (sharded != whole.masters.end()) masters.emplace_back(name_in(model, name), sharded->second);
      if (shared.masters.has(parameter)) masters.emplace_back(name_in(model, name), shared.masters.of({parameter})[0]);
    }
  }
  return masters;
}

// Gradients of an open window are saved by their model's parameter names. An optimizer may step on other parameters.
void throw_gradients_without_model(AcceleratorState& shared) {
  std::unordered_set<const void*> of_models;
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    for (const auto& [name, parameter] : model.parameters()) of_models.insert(parameter.unsafeGetTensorImpl());
  }
  for (const OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    for (const at::Tensor& parameter : optim::parameters_of(optimizer.optimizer())) {
      if (!parameter.grad().defined() || of_models.contains(parameter.unsafeGetTensorImpl())) continue;
      base::fail(ErrorKind::usage, shared.place, "save_state",
                 "the accumulation window is open and a parameter that {} steps on and no prepared model has holds a "
                 "gradient, which is not saved; save where sync_gradients() is true",
                 optimizer.name());
    }
  }
}

std::optional<checkpoint::OpenWindow> open_window(AcceleratorState& shared) {
  const auto& state = shared.window.state();
  if (state.window == 0) return std::nullopt;
  const WindowCount& count = shared.window.count;
  checkpoint::OpenWindow window{.micro_batches = state.window,
                                .of = shared.window.options.steps,
                                .loss_unit = static_cast<int64_t>(count.unit()),
                                .count = count.total(),
                                .undivided = count.undivided()};
  throw_gradients_without_model(shared);
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    if (model.fully_sharded() == nullptr) continue;
    base::fail(
        ErrorKind::usage, shared.place, "save_state",
        "the accumulation window is open, and with sharding {} each rank has a part of its gradients, which is not "
        "saved; save where sync_gradients() is true",
        sharding::strategy_name(shared.sharding));
  }
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    for (const auto& [name, parameter] : model.parameters()) {
      const at::Tensor& gradient = parameter.grad();
      if (gradient.defined() && gradient.layout() == c10::kStrided) {
        window.gradients.emplace_back(name_in(model, name), gradient);
      } else if (gradient.defined()) {
        base::fail(ErrorKind::usage, shared.place, "save_state",
                   "the accumulation window is open and the gradient of {} is sparse, which is not saved; save where "
                   "sync_gradients() is true",
                   name);
      }
    }
  }
  return window;
}

// PyTorch's schedulers keep numbers in their optimizer's parameter groups (initial_lr). LibTorch's groups have no field
// for them.
void add_to_groups(AcceleratorState& shared, const SchedulerCore& scheduler, const state::SchedulerState& state,
                   std::vector<state::OptimizerState>& optimizers) {
  const OptimizerCore* optimizer = optimizer_of(shared, scheduler);
  if (optimizer == nullptr) return;
  auto& groups = optimizers[static_cast<size_t>(optimizer->index())].groups;
  for (const auto& [name, numbers] : state.python.of_groups) {
    for (size_t g = 0; g < std::min(groups.size(), numbers.size()); ++g) {
      auto& options = groups[g].options;
      const bool has = std::any_of(options.begin(), options.end(), [&](const auto& own) { return own.first == name; });
      if (!has) options.emplace_back(name, numbers[g]);  // the first scheduler of an optimizer wins
    }
  }
}

// State of communication hooks that persists between steps (PowerSGD).
NamedTensors comm_hooks_of(AcceleratorState& shared) {
  NamedTensors all;
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    if (model.gradient_reducer() == nullptr) continue;
    for (const auto& [name, tensor] : model.gradient_reducer()->reducer_state())
      all.emplace_back(name_in(model, name), tensor);
  }
  return all;
}

// Generator state of a loader that draws its order from the CPU generator.
std::optional<checkpoint::LoaderGenerator> generator_of(const LoaderCore& loader) {
  if (!loader.order) return std::nullopt;
  const auto start = loader.order->start();
  if (!start) return checkpoint::LoaderGenerator{};
  return checkpoint::LoaderGenerator{.state = start->stream.to_tensor(), .pass = static_cast<int64_t>(start->pass)};
}

// With broadcast_buffers, ranks' buffers differ between synchronised forwards: every model file has rank 0's values,
// and each rank saves its own beside it. Without broadcast_buffers, ranks never compare them, and each rank saves all
// its own.
void add_buffers(const ModelCore& model, const std::vector<gradient::BufferBroadcast::WithRoot>& with_rank_0,
                 const AcceleratorState& shared, CheckpointContent& content) {
  if (shared.group.size() == 1) return;
  if (!model.options().broadcast_buffers) {
    for (const auto& [name, tensor] : model.buffers()) content.buffers.emplace_back(name_in(model, name), tensor);
    return;
  }
  const auto* broadcast = model.buffer_broadcast();
  if (broadcast != nullptr && !broadcast->due()) content.local_buffers.push_back(model.index());
  if (shared.group.rank() == 0) return;
  std::unordered_map<const void*, at::Tensor> rank_0_buffers;
  for (const auto& [own, values] : with_rank_0) rank_0_buffers.emplace(own.unsafeGetTensorImpl(), values);
  for (auto& [name, tensor] : content.models.back()) {
    const auto found = rank_0_buffers.find(tensor.unsafeGetTensorImpl());
    if (found == rank_0_buffers.end()) continue;
    content.buffers.emplace_back(name_in(model, name), tensor);
    content.buffers_of_rank_0.emplace_back(name_in(model, name), found->second);
    tensor = found->second;
  }
}

}  // namespace

BuffersWithRank0 buffers_with_rank_0(AcceleratorState& shared) {
  BuffersWithRank0 all;
  for (ModelCore& model : shared.registry.of<ModelCore>()) all.push_back(model.buffers_with_rank_0());
  return all;
}

ShardedContent sharded_content(AcceleratorState& shared, OptimizerStates states, const ShardedCustoms& customs) {
  ShardedContent content{.parts = take_parts(shared, states), .is_in_parts = parameters_in_parts(shared)};
  content.states = gather_states(shared, states);
  content.weights = gather_weights(fully_sharded_models(shared), content.is_in_parts);
  content.customs = gather_customs(shared, customs, content.parts);
  return content;
}

void replace_sharded_values(const std::vector<sharding::FullyShardedParameters*>& models) {
  for (sharding::FullyShardedParameters* model : models) model->parts_replaced();
}

const OptimizerCore* optimizer_of(AcceleratorState& shared, const SchedulerCore& scheduler) {
  for (const OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    if (&optimizer.optimizer() == scheduler.of) return &optimizer;
  }
  return nullptr;
}

CheckpointContent content_of(AcceleratorState& shared, const std::vector<CustomObject>& customs,
                             const BuffersWithRank0& buffers, ShardedContent sharded) {
  if (shared.scaling) {
    shared.scaling->run_deferred_schedules();
    std::ignore = shared.scaling->any_was_skipped();  // the count includes skipped steps until their flags are read
  }
  // Negative if an optimizer became the first one after its skipped steps.
  CheckpointContent content{.step = std::max<int64_t>(shared.steps, 0), .accumulated = shared.window.state().step};
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    content.models.push_back(weights_of(model));
    replace_sharded(content.models.back(), sharded.weights);
    content.in_parts.push_back(std::erase_if(content.models.back(), [&](const auto& named) {
                                 return sharded.is_in_parts.contains(named.second.unsafeGetTensorImpl());
                               }) > 0);
    content.with_buffers.push_back(!model.buffers().empty());
    add_buffers(model, buffers[content.models.size() - 1], shared, content);
  }
  content.parts = std::move(sharded.parts);
  content.masters = masters_of(shared, sharded.weights);
  for (OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    optimizer.discard_skipped_steps();
    auto& gathered = sharded.states[static_cast<size_t>(optimizer.index())];
    content.optimizers.push_back(gathered ? std::move(*gathered)
                                          : optim::optimizer_state(optimizer.optimizer(), shared.place));
  }
  for (const SchedulerCore& scheduler : shared.registry.of<SchedulerCore>()) {
    content.schedulers.push_back(scheduler.access.get());
    if (content.schedulers.back()) {
      add_to_groups(shared, scheduler, *content.schedulers.back(), content.optimizers);
    } else {
      base::log_once(base::LogLevel::warning, shared.place,
                     "save_state: {} is LibTorch's ReduceLROnPlateauScheduler, which does not expose its state: it is "
                     "not saved; take accelerate::optim::ReduceLROnPlateau",
                     scheduler.name());
    }
  }
  for (const LoaderCore& loader : shared.registry.of<LoaderCore>()) {
    content.loaders.push_back(loader.access->get());
    content.loader_generators.push_back(generator_of(loader));
    if (!content.loaders.back() && !content.loader_generators.back()) {
      base::log_once(base::LogLevel::warning, shared.place,
                     "save_state: {} does not report its position, which is not saved; save the number of its batches "
                     "yourself, and after load_state() walk accelerator.skip_first_batches() of it",
                     loader.name());
    }
  }
  if (!content.loaders.empty() && content.loaders.front()) content.epoch = content.loaders.front()->epoch;
  if (shared.scaling) content.scaler = shared.scaling->scaler().state();
  for (size_t i = 0; i < customs.size(); ++i) {
    content.customs.push_back(sharded.customs[i] ? std::move(*sharded.customs[i]) : customs[i].save());
  }
  content.random = checkpoint::random_states(shared.device.type());
  content.window = open_window(shared);
  content.comm_hooks = comm_hooks_of(shared);
  return content;
}

}  // namespace accelerate::prepared

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/split_state.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

#include "accelerate/base/error.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/optim/parameter_groups.hpp"
#include "accelerate/prepared/checkpoint_content.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/optimizer.hpp"
#include "accelerate/prepared/split_parameters.hpp"
#include "accelerate/tensor_parallel/split_record.hpp"

namespace accelerate::prepared {
namespace {

bool has_split_models(AcceleratorState& shared) {
  return std::ranges::any_of(shared.registry.list<ModelCore>(), [](const auto& model) { return has_split(*model); });
}

template <typename... Args>
[[noreturn]] void refuse_save(const AcceleratorState& shared, fmt::format_string<Args...> format, Args&&... args) {
  base::fail(ErrorKind::usage, shared.place, "save_state", format, std::forward<Args>(args)...);
}

/// Calls change(parameter, tensor) for the tensors of the state that have the shape `like(parameter)`.
template <typename Like, typename Change>
void for_split_states(const OptimizerCore& optimizer, state::OptimizerState& state, const Like& like,
                      const Change& change) {
  const auto parameters = optim::parameters_of(optimizer.optimizer());
  for (auto& [number, tensors] : state.tensors) {
    if (number < 0 || static_cast<size_t>(number) >= parameters.size()) continue;  // check_state() refuses it
    const at::Tensor& parameter = parameters[static_cast<size_t>(number)];
    if (!nn::recorded_part(parameter)) continue;
    const auto sizes = like(parameter).sizes().vec();
    for (auto& [name, tensor] : tensors) {
      if (tensor.sizes() == at::IntArrayRef(sizes)) change(parameter, tensor);
    }
  }
}

}  // namespace

at::Tensor PartJoiner::whole(const at::Tensor& parameter, const at::Tensor& part) {
  const auto recorded = nn::recorded_part(parameter);
  if (!recorded) return part;
  const at::NoGradGuard no_grad;
  const auto parts =
      comm::with_operation_context("save", "the parts of tensor parallel layers are not joined", group_.place(),
                                   [&] { return group_.all_gather_list(part.detach().contiguous()); });
  return keeps_ ? nn::whole_of(parts, recorded->split).cpu() : at::empty({0}, part.options().requires_grad(false));
}

void PartJoiner::join(checkpoint::NamedTensors& tensors) {
  for (auto& [name, tensor] : tensors) {
    if (!nn::recorded_part(tensor)) continue;
    at::Tensor& joined = joined_[tensor.unsafeGetTensorImpl()];
    if (!joined.defined()) joined = whole(tensor, tensor);
    tensor = joined;
  }
}

void PartJoiner::join(const OptimizerCore& optimizer, state::OptimizerState& state) {
  for_split_states(
      optimizer, state, [](const at::Tensor& parameter) { return parameter; },
      [&](const at::Tensor& parameter, at::Tensor& tensor) { tensor = whole(parameter, tensor); });
}

void check_can_be_joined(AcceleratorState& shared, const checkpoint::CheckpointContent& content) {
  if (!has_split_models(shared)) return;
  if (content.window) {
    refuse_save(shared,
                "the accumulation window is open, and gradients of tensor parallel layers are not saved; save where "
                "sync_gradients() is true");
  }
  if (!content.comm_hooks.empty()) {
    refuse_save(shared,
                "the communication hook of a model with tensor parallel layers has a state, which is not saved; use a "
                "hook without a state");
  }
  for (const OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    if (content.optimizers[static_cast<size_t>(optimizer.index())].own.empty()) continue;
    if (!has_split(optim::parameters_of(optimizer.optimizer()))) continue;
    refuse_save(shared,
                "{} saves its state by itself, and its parameters are parts of tensor parallel layers; use SGD, Adam, "
                "AdamW, Adagrad or RMSprop of torch::optim",
                optimizer.name());
  }
}

void join_parts(AcceleratorState& shared, checkpoint::CheckpointContent& content, bool keeps) {
  if (!has_split_models(shared)) return;
  PartJoiner joiner(shared, keeps);
  std::unordered_map<std::string, at::Tensor> parameters;
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    joiner.join(content.models[static_cast<size_t>(model.index())]);
    for (const auto& [name, parameter] : model.parameters()) parameters.emplace(name_in(model, name), parameter);
  }
  for (auto& [name, master] : content.masters) master = joiner.whole(parameters.at(name), master);
  for (const OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    joiner.join(optimizer, content.optimizers[static_cast<size_t>(optimizer.index())]);
  }
}

at::Tensor whole_shape_of(const at::Tensor& parameter) {
  const auto recorded = nn::recorded_part(parameter);
  if (!recorded) return parameter;
  auto sizes = parameter.sizes().vec();
  sizes.at(static_cast<size_t>(recorded->split.dim)) *= recorded->parts;
  return at::empty(sizes, parameter.options().device(c10::kMeta).requires_grad(false));
}

at::Tensor own_part_of(const at::Tensor& parameter, const at::Tensor& saved, const state::ReadElements& read) {
  const auto recorded = nn::recorded_part(parameter);
  if (!recorded) return saved;
  return nn::part_of(state::whole_of(saved, read), recorded->split, recorded->part, recorded->parts);
}

void take_own_parts(const OptimizerCore& optimizer, state::OptimizerState& saved, const state::ReadElements& read) {
  for_split_states(optimizer, saved, whole_shape_of, [&](const at::Tensor& parameter, at::Tensor& tensor) {
    tensor = own_part_of(parameter, tensor, read);
  });
}

}  // namespace accelerate::prepared

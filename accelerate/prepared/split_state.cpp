// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/split_state.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <sstream>
#include <string>
#include <utility>
#include <variant>

#include "accelerate/archive/checksum.hpp"
#include "accelerate/base/error.hpp"
#include "accelerate/base/exception_text.hpp"
#include "accelerate/checkpoint/tensors.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/optim/parameter_groups.hpp"
#include "accelerate/prepared/checkpoint_content.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/optimizer.hpp"
#include "accelerate/prepared/split_parameters.hpp"
#include "accelerate/tensor_parallel/split_record.hpp"

namespace accelerate::prepared {
namespace {

using checkpoint::NamedTensors;

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
    if (number < 0 || static_cast<size_t>(number) >= parameters.size()) continue;  // check_optimizer_state() refuses it
    const at::Tensor& parameter = parameters[static_cast<size_t>(number)];
    if (!nn::recorded_part(parameter)) continue;
    const auto sizes = like(parameter).sizes().vec();
    for (auto& [name, tensor] : tensors) {
      if (tensor.sizes() == at::IntArrayRef(sizes)) change(parameter, tensor);
    }
  }
}

/// Calls change(name, parameter, tensor) for the tensors of a registered object that belong to split parameters.
template <typename Change>
void for_split_tensors(const CustomObject& object, checkpoint::CustomState& state, const Change& change) {
  auto* tensors = std::get_if<NamedTensors>(&state);
  if (tensors == nullptr || !object.parameters) return;
  std::unordered_map<std::string, at::Tensor> split;
  for (const auto& [name, parameter] : object.parameters()) {
    if (nn::recorded_part(parameter)) split.emplace(name, parameter);
  }
  for (auto& [name, tensor] : *tensors) {
    const auto parameter = split.find(name);
    if (parameter != split.end()) change(name, parameter->second, tensor);
  }
}

at::Tensor itself(const at::Tensor& parameter) { return parameter; }

/// Returns true if the tensor belongs to no parameter, neither as a part nor whole. Rounding may differ between ranks,
/// and a model's own replicated parameters are saved without a comparison, too.
bool must_be_equal(const std::unordered_map<std::string, at::Tensor>& parameters, const std::string& name,
                   const at::Tensor& tensor) {
  const auto parameter = parameters.find(name);
  if (parameter == parameters.end()) return true;
  return nn::recorded_part(parameter->second) && tensor.sizes() != parameter->second.sizes();
}

/// Returns one line for each tensor of the registered objects: number of the object and name, and a checksum of the
/// values if they must be equal.
std::string describe_tensors(const std::vector<CustomObject>& customs,
                             const std::vector<checkpoint::CustomState>& states) {
  std::string text;
  for (size_t i = 0; i < customs.size(); ++i) {
    const auto* tensors = std::get_if<NamedTensors>(&states[i]);
    if (tensors == nullptr) continue;
    const NamedTensors named = customs[i].parameters ? customs[i].parameters() : NamedTensors();
    const std::unordered_map<std::string, at::Tensor> parameters(named.begin(), named.end());
    for (const auto& [name, tensor] : *tensors) {
      text += fmt::format("{}\t{}\t", i, name);
      if (tensor.defined() && must_be_equal(parameters, name, tensor)) {
        const at::Tensor written = checkpoint::as_written(tensor, name, "save_state");
        text += archive::checksum_of(checkpoint::tensor_bytes(written));
      }
      text += '\n';
    }
  }
  return text;
}

/// Returns the first line that differs. One text may have more lines.
std::string first_different_line(const std::string& one, const std::string& other) {
  std::istringstream lines(one), others(other);
  std::string line, its;
  do {
    if (!std::getline(lines, line)) line.clear();
    if (!std::getline(others, its)) its.clear();
  } while (line == its && lines && others);
  return line.empty() ? its : line;
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

void PartJoiner::join(NamedTensors& tensors) {
  for (auto& [name, tensor] : tensors) {
    if (!nn::recorded_part(tensor)) continue;
    at::Tensor& joined = joined_[tensor.unsafeGetTensorImpl()];
    if (!joined.defined()) joined = whole(tensor, tensor);
    tensor = joined;
  }
}

void PartJoiner::join(const OptimizerCore& optimizer, state::OptimizerState& state) {
  for_split_states(optimizer, state, itself,
                   [&](const at::Tensor& parameter, at::Tensor& tensor) { tensor = whole(parameter, tensor); });
}

void PartJoiner::join(const CustomObject& object, checkpoint::CustomState& state) {
  for_split_tensors(object, state, [&](const std::string&, const at::Tensor& parameter, at::Tensor& tensor) {
    if (tensor.sizes() == parameter.sizes()) tensor = whole(parameter, tensor);
  });
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

void check_equal_in_tensor_group(AcceleratorState& shared, const std::vector<CustomObject>& customs,
                                 const checkpoint::CheckpointContent& content) {
  if (!has_split_models(shared)) return;
  // state_parameters() of an object may throw on one rank. The caller reports it on all.
  std::string own = "failed";
  const auto failure = base::capture_exception([&] { own = describe_tensors(customs, content.customs); });
  // One collective, because ranks that registered different numbers of objects would wait for each other.
  const auto all = comm::with_operation_context("save_state", "the registered objects are not compared", shared.place,
                                                [&] { return shared.mesh.tensor.all_gather_bytes(own); });
  if (failure) std::rethrow_exception(failure);
  if (std::ranges::find(all, "failed") != all.end()) return;
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    const std::string line = first_different_line(all[0], all[rank]);
    const auto name = line.find('\t') + 1;
    refuse_save(shared,
                "{} of registered object {} differs between ranks 0 and {} of a tensor parallel group, and a "
                "checkpoint has one of it; if it belongs to a parameter of a tensor parallel layer, give the object "
                "state_parameters(), which returns the parameter by that name",
                line.substr(name, line.rfind('\t') - name), line.substr(0, name - 1), rank);
  }
}

void join_parts(AcceleratorState& shared, const std::vector<CustomObject>& customs,
                checkpoint::CheckpointContent& content, bool keeps) {
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
  for (size_t i = 0; i < customs.size(); ++i) joiner.join(customs[i], content.customs[i]);
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

void take_own_parts(const CustomObject& object, checkpoint::CustomState& saved, const state::ReadElements& read,
                    const RankContext& place) {
  for_split_tensors(object, saved, [&](const std::string& name, const at::Tensor& parameter, at::Tensor& tensor) {
    const at::Tensor whole = whole_shape_of(parameter);
    if (tensor.sizes() == whole.sizes()) {
      tensor = own_part_of(parameter, tensor, read);
      return;
    }
    if (tensor.sizes() != parameter.sizes()) return;  // the object checks it
    base::fail(ErrorKind::data, place, "load_state",
               "{} of a registered object is [{}], the part of one rank of a tensor parallel group, expected the whole "
               "tensor, [{}]: when the checkpoint was written, the object had no state_parameters(), and the parts of "
               "the other ranks were not saved; load the checkpoint without this object",
               name, fmt::join(tensor.sizes(), ", "), fmt::join(whole.sizes(), ", "));
  });
}

}  // namespace accelerate::prepared

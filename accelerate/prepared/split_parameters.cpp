// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/split_parameters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "accelerate/base/error.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/gradient/coalesced.hpp"
#include "accelerate/gradient/verify_parameters.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/tensor_parallel/split_record.hpp"
#include "accelerate/units/gather_on_use.hpp"

namespace accelerate::prepared {
namespace {

// Layers that were made with another group would be joined with the wrong parts.
void check_part(const AcceleratorState& shared, const std::string& name, const nn::RecordedPart& part) {
  const comm::Group& tensor = shared.mesh.tensor;
  if (tensor.size() == 1 || (part.part == tensor.rank() && part.parts == tensor.size())) return;
  base::fail(ErrorKind::usage, shared.place, "prepare",
             "{} is part {} of {} of a tensor parallel layer, and this rank is {} of {} in its tensor parallel group; "
             "make the layers with accelerator.tensor_parallel_group()",
             name, part.part + 1, part.parts, tensor.rank() + 1, tensor.size());
}

}  // namespace

void check_split_parameters(const AcceleratorState& shared, const std::vector<gradient::NamedTensor>& parameters) {
  std::string parts, first;
  for (const auto& parameter : parameters) {
    const auto part = nn::recorded_part(parameter.tensor);
    if (!part) continue;
    if (first.empty()) first = parameter.name;
    check_part(shared, parameter.name, *part);
    parts += fmt::format("{} {}/{} ", parameter.name, part->part, part->parts);
  }
  if (first.empty()) return;
  if (shared.sharding != sharding::ShardingStrategy::no_shard && shared.mesh.tensor.size() == 1) {
    base::fail(ErrorKind::usage, shared.place, "prepare",
               "{} is a part of a tensor parallel layer, and sharding is {}, for which the Accelerator must know the "
               "tensor parallel group; set AcceleratorOptions::parallelism_config, or use no_shard",
               first, sharding::strategy_name(shared.sharding));
  }
  const auto all = shared.group.all_gather_bytes(parts);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    base::fail(
        ErrorKind::usage, shared.place, "prepare",
        "{} is a part of a tensor parallel layer, and ranks 0 and {} of this Accelerator have different parts "
        "and must not average their gradients; set AcceleratorOptions::parallelism_config, and make the layers with "
        "accelerator.tensor_parallel_group()",
        first, rank);
  }
}

void make_equal_in_tensor_group(const AcceleratorState& shared, const std::vector<gradient::NamedTensor>& parameters,
                                const std::vector<gradient::NamedTensor>& buffers, int64_t bucket_bytes) {
  const comm::Group& group = shared.mesh.tensor;
  if (group.size() == 1) return;
  auto equal = without_split(parameters);
  for (const auto& buffer : without_split(buffers)) equal.push_back(buffer);
  comm::with_operation_context("prepare", "the parameters that are not split are not made equal", shared.place, [&] {
    gradient::verify_parameters(group, "parameter", equal);
    std::vector<at::Tensor> tensors;
    for (const auto& each : equal) {
      if (!units::is_offloaded(each.tensor)) tensors.push_back(each.tensor);
    }
    gradient::broadcast_tensors(group, tensors, 0, bucket_bytes);
  });
}

std::vector<gradient::NamedTensor> without_split(const std::vector<gradient::NamedTensor>& parameters) {
  std::vector<gradient::NamedTensor> whole;
  for (const auto& parameter : parameters) {
    if (!nn::recorded_part(parameter.tensor)) whole.push_back(parameter);
  }
  return whole;
}

nn::SplitGradients split_gradients(const std::vector<std::shared_ptr<ModelCore>>& models,
                                   const std::vector<at::Tensor>& parameters) {
  const auto [split, equal] = nn::parts_and_others(unique_tensors(parameters));
  return {.parts = flat_gradients(models, split), .whole = flat_gradients(models, equal)};
}

bool has_split(const std::vector<at::Tensor>& tensors) {
  return std::ranges::any_of(tensors, [](const at::Tensor& one) { return nn::recorded_part(one).has_value(); });
}

bool has_split(const ModelCore& model) {
  return std::ranges::any_of(model.parameters(),
                             [](const auto& one) { return nn::recorded_part(one.tensor).has_value(); });
}

void refuse_split_parameters(const AcceleratorState& shared, const std::vector<at::Tensor>& parameters,
                             std::string_view operation, std::string_view reason) {
  for (const at::Tensor& parameter : parameters) {
    const auto part = nn::recorded_part(parameter);
    if (!part || part->parts == shared.mesh.tensor.size()) continue;
    base::fail(ErrorKind::usage, shared.place, operation,
               "a parameter is part {} of {} of a tensor parallel layer, and {}", part->part + 1, part->parts, reason);
  }
}

void refuse_split_model(const AcceleratorState& shared, const ModelCore& model, std::string_view operation) {
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : model.parameters()) tensors.push_back(parameter.tensor);
  refuse_split_parameters(shared, tensors, operation,
                          "files would contain this part only; use nn::whole_state_dict() and "
                          "nn::load_whole_state_dict()");
}

void refuse_split_models(AcceleratorState& shared, std::string_view operation) {
  for (const auto& model : shared.registry.list<ModelCore>()) refuse_split_model(shared, *model, operation);
}

}  // namespace accelerate::prepared

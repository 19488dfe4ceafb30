// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/split_parameters.hpp"

#include <fmt/format.h>

#include <string>

#include "accelerate/base/error.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/tensor_parallel/split_record.hpp"

namespace accelerate::prepared {

void check_split_parameters(const AcceleratorState& shared, const std::vector<gradient::NamedTensor>& parameters) {
  std::string parts, first;
  for (const auto& parameter : parameters) {
    const auto part = nn::recorded_part(parameter.tensor);
    if (!part) continue;
    if (first.empty()) first = parameter.name;
    parts += fmt::format("{} {}/{} ", parameter.name, part->part, part->parts);
  }
  if (first.empty()) return;
  if (shared.sharding != sharding::ShardingStrategy::no_shard) {
    base::fail(ErrorKind::usage, shared.place, "prepare",
               "{} is a part of a tensor parallel layer, which is not supported with sharding {}; use no_shard", first,
               sharding::name_of(shared.sharding));
  }
  const auto all = shared.group.all_gather_bytes(parts);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    base::fail(ErrorKind::usage, shared.place, "prepare",
               "{} is a part of a tensor parallel layer, and ranks 0 and {} of this Accelerator have different parts, "
               "whose gradients must not be averaged; construct the Accelerator with the data parallel group",
               first, rank);
  }
}

void refuse_split_parameters(const AcceleratorState& shared, const std::vector<at::Tensor>& parameters,
                             std::string_view operation, std::string_view reason) {
  for (const at::Tensor& parameter : parameters) {
    const auto part = nn::recorded_part(parameter);
    if (!part) continue;
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

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/metrics.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "accelerate/comm/error_context.hpp"
#include "accelerate/prepared/checkpoint_io.hpp"
#include "accelerate/prepared/padding.hpp"
#include "accelerate/prepared/pipeline_state.hpp"
#include "accelerate/prepared/sharded_optimizer_state.hpp"
#include "accelerate/prepared/split_parameters.hpp"
#include "accelerate/prepared/split_state.hpp"
#include "accelerate/prepared/stage_names.hpp"
#include "accelerate/sharding/fully_sharded_parameters.hpp"

namespace accelerate::prepared {
namespace {

// "5:hello3:you": the length of each object, then its bytes.
std::string packed(const std::vector<std::string>& objects) {
  std::string bytes;
  for (const std::string& object : objects) bytes += std::to_string(object.size()) + ':' + object;
  return bytes;
}

void unpack(std::string_view bytes, std::vector<std::string>& objects) {
  while (!bytes.empty()) {
    size_t length = 0;
    const char* colon = std::from_chars(bytes.data(), bytes.data() + bytes.size(), length).ptr;
    bytes.remove_prefix(static_cast<size_t>(colon - bytes.data()) + 1);
    objects.emplace_back(bytes.substr(0, length));
    bytes.remove_prefix(length);
  }
}

}  // namespace

std::vector<std::string> gather_objects_for_metrics(const AcceleratorState& shared,
                                                    const std::vector<std::string>& objects) {
  if (shared.mesh.data.size() == 1) return objects;
  std::vector<std::string> all;
  const auto gathered =
      comm::with_operation_context("gather_for_metrics", "the objects are not put together", shared.place,
                                   [&] { return shared.mesh.data.all_gather_bytes(packed(objects)); });
  for (const std::string& of_rank : gathered) unpack(of_rank, all);
  const state::BatchInfo* loader = shared.active_loader();
  if (loader == nullptr || !is_filled(*loader)) return all;
  return drop_padding(std::move(all), *loader, shared.mesh.data.size());
}

comm::ReduceOp reduce_op_of(std::string_view name, const RankContext& place) {
  using enum comm::ReduceOp;
  constexpr std::array<std::pair<std::string_view, comm::ReduceOp>, 5> names{
      {{"sum", sum}, {"mean", mean}, {"max", max}, {"min", min}, {"product", product}}};
  for (const auto& [known, op] : names) {
    if (known == name) return op;
  }
  base::fail(ErrorKind::usage, place, "reduce", "the reduction is '{}', must be sum, mean, max, min or product", name);
}

torch::OrderedDict<std::string, at::Tensor> state_dict(const ModelCore& model) {
  auto weights = weights_of(model);
  torch::OrderedDict<std::string, at::Tensor> dict;
  const auto sharded = model.sharded_in_forward();
  const bool is_gathered = std::ranges::any_of(sharded, [](const auto* by) { return by->shards_parameters(); });
  if (!gather_on_rank_0(model, weights, "get_state_dict")) return dict;
  const bool is_split = model.shared().mesh.tensor.size() > 1 && has_split(model);
  const bool spans_pipeline_stages = has_pipeline_stages(model.shared()) && model.options().pipeline != nullptr;
  if (is_split) {
    const bool keeps = spans_pipeline_stages ? is_stage_writer(model.shared()) : model.place().rank == 0;
    PartJoiner(model.shared(), keeps).join(weights);
  }
  if (spans_pipeline_stages) gather_stages(model, weights);
  // A gathered model is on the first rank of each data parallel group.
  if ((is_split || is_gathered || spans_pipeline_stages) && model.place().rank != 0) return dict;
  for (const auto& [name, tensor] : weights) dict.insert(name, tensor.detach());
  return dict;
}

}  // namespace accelerate::prepared

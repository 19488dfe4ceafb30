// SPDX-License-Identifier: Apache-2.0
#include "accelerate/pipeline/division.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "accelerate/base/error.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/pipeline/pipeline.hpp"
#include "accelerate/pipeline/split.hpp"

namespace accelerate::pipeline {
namespace {

void check_sizes(const std::vector<int64_t>& sizes, int64_t stages, int64_t layers, const RankContext& place) {
  const bool fits = static_cast<int64_t>(sizes.size()) == stages &&
                    std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size >= 1; }) &&
                    std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) == layers;
  if (fits) return;
  base::fail(ErrorKind::usage, place, "Pipeline",
             "layers_per_stage is [{}], must be {} numbers of at least 1 with the sum {}, the number of layers",
             fmt::join(sizes, ", "), stages, layers);
}

/// Measured costs differ between ranks, so the sizes of rank 0 are used.
std::vector<int64_t> sizes_of_first_rank(const comm::Group& group, const std::vector<int64_t>& sizes, int64_t layers) {
  std::vector<int64_t> mine = sizes;
  mine.push_back(layers);
  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(int64_t));
  const std::string theirs = comm::with_operation_context("Pipeline", "the division of the layers is not shared",
                                                          group.place(), [&] { return group.broadcast_bytes(bytes); });
  std::vector<int64_t> first(theirs.size() / sizeof(int64_t));
  std::memcpy(first.data(), theirs.data(), theirs.size());
  if (first.size() != mine.size() || first.back() != layers) {
    base::fail(ErrorKind::peer, group.place(), "Pipeline",
               "this rank has {} layers in {} stages, rank 0 has {} in {}; they must be equal.", layers, sizes.size(),
               first.back(), first.size() - 1);
  }
  first.pop_back();
  return first;
}

}  // namespace

std::vector<int64_t> divide_layers(const torch::nn::Sequential& layers, int64_t stages, const PipelineOptions& options,
                                   const std::optional<comm::Group>& group) {
  const RankContext place = group ? group->place() : RankContext();
  if (layers.is_empty() || layers->is_empty()) base::fail(ErrorKind::usage, place, "Pipeline", "the model is empty");
  const auto count = static_cast<int64_t>(layers->size());
  std::vector<int64_t> sizes = options.layers_per_stage;
  if (!sizes.empty()) {
    check_sizes(sizes, stages, count, place);
  } else {
    const auto costs = options.layer_costs.empty() ? parameter_costs(layers) : options.layer_costs;
    if (static_cast<int64_t>(costs.size()) != count) {
      base::fail(ErrorKind::usage, place, "Pipeline", "there are {} layer_costs, the model has {} layers", costs.size(),
                 count);
    }
    sizes = balanced_split(costs, stages);
  }
  return group && group->size() > 1 ? sizes_of_first_rank(*group, sizes, count) : sizes;
}

std::vector<TiedParameter> shared_parameters(const torch::nn::Sequential& layers,
                                             const std::vector<int64_t>& rank_of_layer) {
  std::vector<TiedParameter> found;
  const auto children = layers->named_children();
  for (size_t i = 0; i < children.size(); ++i) {
    for (const auto& parameter : children[i].value()->named_parameters()) {
      auto same = std::find_if(found.begin(), found.end(),
                               [&](const TiedParameter& each) { return each.tensor.is_same(parameter.value()); });
      if (same == found.end()) {
        found.push_back({.name = children[i].key() + "." + parameter.key(), .tensor = parameter.value()});
        same = found.end() - 1;
      }
      same->ranks.push_back(rank_of_layer[i]);
    }
  }
  for (auto& each : found) {
    std::sort(each.ranks.begin(), each.ranks.end());
    each.ranks.erase(std::unique(each.ranks.begin(), each.ranks.end()), each.ranks.end());
  }
  std::erase_if(found, [](const TiedParameter& each) { return each.ranks.size() < 2; });
  return found;
}

}  // namespace accelerate::pipeline

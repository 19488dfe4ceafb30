// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/stage_names.hpp"

#include <algorithm>

#include "accelerate/comm/error_context.hpp"
#include "accelerate/pipeline/model_layout.hpp"
#include "accelerate/prepared/checkpoint_content.hpp"
#include "accelerate/prepared/model.hpp"

namespace accelerate::prepared {
namespace {

/// Returns true if the name, or its end after a prefix such as "module.", is one of a Pipeline for which `accepts` is
/// true.
template <typename Accepts>
bool ends_with_name_of_model(AcceleratorState& shared, const std::string& name, const Accepts& accepts) {
  return std::ranges::any_of(shared.registry.of<ModelCore>(), [&](const ModelCore& model) {
    const auto& layout = model.options().pipeline;
    if (layout == nullptr) return false;
    for (size_t begin = 0; begin < name.size(); ++begin) {
      if (begin > 0 && name[begin - 1] != '.') continue;
      const std::string end = name.substr(begin);
      if (layout->positions.contains(end) && accepts(model, end)) return true;
    }
    return false;
  });
}

}  // namespace

bool has_pipeline_stages(const AcceleratorState& shared) { return shared.mesh.pipeline.size() > 1; }

bool is_stage_writer(const AcceleratorState& shared) {
  return shared.group.rank() == 0 && shared.mesh.tensor.rank() == 0;
}

std::unordered_map<const void*, std::string> qualified_parameter_names(AcceleratorState& shared) {
  std::unordered_map<const void*, std::string> names;
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    const auto& layout = model.options().pipeline;
    if (layout == nullptr) continue;
    for (const auto& [name, parameter] : model.parameters()) {
      names.emplace(parameter.unsafeGetTensorImpl(), name_in(model, layout->canonical_names.at(name)));
    }
  }
  return names;
}

std::unordered_map<std::string, std::pair<int64_t, int64_t>> positions_of_names(AcceleratorState& shared) {
  std::unordered_map<std::string, std::pair<int64_t, int64_t>> positions;
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    const auto& layout = model.options().pipeline;
    if (layout == nullptr) continue;
    for (const auto& [name, position] : layout->positions) {
      positions.emplace(name_in(model, name), std::pair(model.index(), position));
    }
  }
  return positions;
}

bool belongs_to_a_stage(AcceleratorState& shared, const std::string& name) {
  return ends_with_name_of_model(shared, name, [](const ModelCore&, const std::string&) { return true; });
}

bool belongs_to_other_stage(AcceleratorState& shared, const std::string& name) {
  return ends_with_name_of_model(shared, name, [](const ModelCore& model, const std::string& end) {
    const auto is_it = [&](const auto& own) { return own.name == end; };
    return std::ranges::none_of(model.parameters(), is_it) && std::ranges::none_of(model.buffers(), is_it);
  });
}

std::string name_here(AcceleratorState& shared, const std::string& name) {
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    const auto& layout = model.options().pipeline;
    const auto canonical =
        layout == nullptr ? decltype(layout->canonical_names.end()){} : layout->canonical_names.find(name);
    if (layout == nullptr || canonical == layout->canonical_names.end()) continue;
    for (const auto& own : model.parameters()) {
      if (layout->canonical_names.at(own.name) == canonical->second) return own.name;
    }
  }
  return name;
}

void check_equal_on_stages(const AcceleratorState& shared, std::string_view operation, std::string_view what,
                           const std::string& text) {
  const auto all =
      comm::with_operation_context(operation, fmt::format("{} of the stages are not compared", what), shared.place,
                                   [&] { return shared.mesh.pipeline.all_gather_bytes(text); });
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    refuse_stage(
        shared, operation,
        "{} of the stages of a pipeline differ, and a checkpoint has one of each: on stage 0 [{}], on stage {} "
        "[{}]; prepare and register the same on all stages",
        what, all[0], rank, all[rank]);
  }
}

}  // namespace accelerate::prepared

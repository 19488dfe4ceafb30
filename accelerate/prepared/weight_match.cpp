// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/weight_match.hpp"

#include <algorithm>
#include <unordered_map>

#include "accelerate/device/copy_all.hpp"
#include "accelerate/prepared/model.hpp"

namespace accelerate::prepared {

using checkpoint::NamedTensors;

namespace {

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t most = 10;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), most); ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > most) text += fmt::format(" and {} more", names.size() - most);
  return text;
}

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides();
}

void forget_tied(const NamedTensors& weights, WeightMatch& match) {
  std::erase_if(match.unmet.missing, [&](const std::string& name) {
    const auto found = std::find_if(weights.begin(), weights.end(), [&](const auto& one) { return one.first == name; });
    return std::any_of(match.pairs.begin(), match.pairs.end(),
                       [&](const auto& pair) { return same_memory(pair.here, found->second); });
  });
}

}  // namespace

WeightMatch match_weights(const ModelCore& model, const NamedTensors& saved) {
  std::unordered_map<std::string_view, const at::Tensor*> by_name;
  for (const auto& [name, tensor] : saved) by_name.emplace(name, &tensor);
  WeightMatch match;
  const NamedTensors weights = weights_of(model);
  for (const auto& [name, tensor] : weights) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      match.unmet.missing.push_back(name);
      continue;
    }
    const at::Tensor& other = *found->second;
    by_name.erase(found);
    if (other.sizes() != tensor.sizes()) {
      match.misshapen.push_back(
          fmt::format("{} ({} saved, {} here)", name, checkpoint::shape_of(other), checkpoint::shape_of(tensor)));
    } else {
      match.pairs.push_back({name, tensor, other});
    }
  }
  for (const auto& [name, tensor] : saved) {
    if (by_name.contains(name)) match.unmet.unexpected.push_back(name);
  }
  if (!match.unmet.missing.empty()) forget_tied(weights, match);
  return match;
}

void check_match(const WeightMatch& match, bool strict, const Place& place, std::string_view operation,
                 std::string_view which) {
  std::string told;
  const auto tell = [&](std::string_view what, const std::vector<std::string>& names) {
    if (!names.empty()) told += fmt::format("{}{}: {}", told.empty() ? "" : "; ", what, listed(names));
  };
  if (strict) {
    tell("not saved", match.unmet.missing);
    tell("saved, but not here", match.unmet.unexpected);
  }
  tell("of another shape", match.misshapen);
  if (told.empty()) return;
  base::fail(ErrorKind::data, place, operation, "{} is not the one that was saved: {}{}", which, told,
             strict && match.misshapen.empty() ? " (strict = false passes over names)" : "");
}

NamedTensors weights_of(const ModelCore& model) {
  NamedTensors weights;
  for (const auto& [name, tensor] : model.parameters()) weights.emplace_back(name, tensor);
  for (const auto& [name, tensor] : model.buffers()) weights.emplace_back(name, tensor);
  return weights;
}

LoadedModel load_weights(const ModelCore& model, const NamedTensors& saved, bool strict, std::string_view operation) {
  const WeightMatch match = match_weights(model, saved);
  check_match(match, strict, model.place(), operation, "the model");
  std::vector<device::CopyPair> copies;
  for (const auto& pair : match.pairs) copies.push_back({pair.here, pair.saved});
  device::copy_all(copies);
  return match.unmet;
}

}  // namespace accelerate::prepared

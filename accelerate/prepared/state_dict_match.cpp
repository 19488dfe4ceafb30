// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/state_dict_match.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>

#include "accelerate/device/copy_all.hpp"
#include "accelerate/prepared/model.hpp"

namespace accelerate::prepared {

using checkpoint::NamedTensors;

namespace {

// Returns the missing names with tensors that share memory with no saved tensor: tied weights are saved once.
std::vector<std::string> without_tied(const NamedTensors& missing, const std::vector<WeightMatch::Pair>& met) {
  std::unordered_multimap<const void*, const at::Tensor*> by_memory;
  for (const auto& pair : met) {
    if (const void* memory = checkpoint::memory_of(pair.here)) by_memory.emplace(memory, &pair.here);
  }
  std::vector<std::string> names;
  for (const auto& [name, tensor] : missing) {
    const auto [first, last] = by_memory.equal_range(checkpoint::memory_of(tensor));
    const auto stands_for = [&, &one = tensor](const auto& other) {
      return checkpoint::same_memory(*other.second, one);
    };
    if (std::none_of(first, last, stands_for)) names.push_back(name);
  }
  return names;
}

// PyTorch before 0.4.1 saved no count of batches with the statistics of a BatchNorm. As load_state_dict() of PyTorch,
// the model then keeps its count: 0, unless it was trained before.
void accept_uncounted_batches(NamedTensors& missing, const std::vector<WeightMatch::Pair>& met) {
  constexpr std::string_view count = "num_batches_tracked";
  const auto is_met = [&](const std::string& name) {
    return std::any_of(met.begin(), met.end(), [&](const auto& pair) { return pair.name == name; });
  };
  std::erase_if(missing, [&](const auto& named) {
    const std::string& name = named.first;
    if (!name.ends_with(count)) return false;
    const std::string prefix = name.substr(0, name.size() - count.size());
    return (prefix.empty() || prefix.ends_with('.')) && is_met(prefix + "running_mean") &&
           is_met(prefix + "running_var");
  });
}

}  // namespace

WeightMatch match_weights(const ModelCore& model, const NamedTensors& saved) {
  std::unordered_map<std::string_view, const at::Tensor*> by_name;
  for (const auto& [name, tensor] : saved) by_name.emplace(name, &tensor);
  WeightMatch match;
  NamedTensors missing;
  const NamedTensors weights = weights_of(model);
  for (const auto& [name, tensor] : weights) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      missing.emplace_back(name, tensor);
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
  accept_uncounted_batches(missing, match.pairs);
  if (!missing.empty()) match.unmet.missing = without_tied(missing, match.pairs);
  return match;
}

void check_match(const WeightMatch& match, bool strict, const RankContext& place, std::string_view operation,
                 std::string_view which) {
  std::string reader_values;
  const auto tell = [&](std::string_view what, const std::vector<std::string>& names) {
    if (!names.empty())
      reader_values += fmt::format("{}{}: {}", reader_values.empty() ? "" : "; ", what, fmt::join(names, ", "));
  };
  if (strict) {
    tell("not saved", match.unmet.missing);
    tell("saved, but not here", match.unmet.unexpected);
  }
  tell("of another shape", match.misshapen);
  if (reader_values.empty()) return;
  base::fail(ErrorKind::data, place, operation, "{} is not the one that was saved: {}{}", which, reader_values,
             strict && match.misshapen.empty() ? " (strict = false passes over names)" : "");
}

NamedTensors weights_of(const ModelCore& model) {
  NamedTensors weights;
  for (const auto& [name, tensor] : model.parameters()) weights.emplace_back(name, tensor);
  for (const auto& [name, tensor] : model.buffers()) weights.emplace_back(name, tensor);
  return weights;
}

void load_pairs(const std::vector<WeightMatch::Pair>& pairs, AcceleratorState& shared) {
  std::vector<device::CopyPair> copies;
  for (const auto& pair : pairs) {
    if (shared.masters.has(pair.here)) {
      shared.masters.set(pair.here, pair.saved);
    } else if (auto* sharded = sharding_of_master(shared, pair.here)) {
      sharded->set_value(pair.here.unsafeGetTensorImpl(), pair.saved);
    } else {
      copies.push_back({pair.here, pair.saved});
    }
  }
  device::copy_all(copies);
}

LoadedModel load_weights(const ModelCore& model, AcceleratorState& shared, const NamedTensors& saved, bool strict,
                         std::string_view operation) {
  const WeightMatch match = match_weights(model, saved);
  check_match(match, strict, model.place(), operation, "the model");
  load_pairs(match.pairs, shared);
  return match.unmet;
}

}  // namespace accelerate::prepared

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/state_dict_match.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "accelerate/device/copy_all.hpp"
#include "accelerate/optim/state_ranges.hpp"
#include "accelerate/pipeline/model_layout.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/split_state.hpp"
#include "accelerate/sharding/fully_sharded_parameters.hpp"

namespace accelerate::prepared {

using checkpoint::NamedTensors;

namespace {

// Returns the missing names with tensors that share memory with no saved tensor: tied weights are saved once.
// Sharded parameters, which have no memory now, are tied only if they are the same parameter.
std::vector<std::string> without_tied(const ModelCore& model, const NamedTensors& missing,
                                      const std::vector<WeightMatch::Pair>& met) {
  const auto is_sharded = [sharded = model.sharded_in_forward()](const at::Tensor& tensor) {
    return std::ranges::any_of(sharded, [&](const auto* by) { return by->manages(tensor.unsafeGetTensorImpl()); });
  };
  std::unordered_multimap<const void*, const at::Tensor*> by_memory;
  for (const auto& pair : met) {
    if (is_sharded(pair.here)) continue;
    if (const void* memory = checkpoint::data_address(pair.here)) by_memory.emplace(memory, &pair.here);
  }
  std::vector<std::string> names;
  for (const auto& [name, tensor] : missing) {
    if (is_sharded(tensor)) {
      const auto is_same = [&, &one = tensor](const auto& pair) { return pair.here.is_same(one); };
      if (std::ranges::none_of(met, is_same)) names.push_back(name);
      continue;
    }
    const auto [first, last] = by_memory.equal_range(checkpoint::data_address(tensor));
    const auto stands_for = [&, &one = tensor](const auto& other) {
      return checkpoint::same_memory(*other.second, one);
    };
    if (std::none_of(first, last, stands_for)) names.push_back(name);
  }
  return names;
}

// Returns true if a stage of the pipeline has the tensor. This rank may have other stages.
bool is_of_pipeline(const ModelCore& model, const std::string& name) {
  const auto& layout = model.options().pipeline;
  return layout != nullptr && layout->positions.contains(name);
}

// Hugging Face Accelerate saves a tied tensor once, under the name of one use. This use may be in another stage.
void add_names_of_other_uses(const ModelCore& model, std::unordered_map<std::string_view, const at::Tensor*>& by_name) {
  const auto& layout = model.options().pipeline;
  if (layout == nullptr) return;
  std::unordered_map<std::string_view, const at::Tensor*> by_first_use;
  for (const auto& [name, first] : layout->canonical_names) {
    const auto found = by_name.find(name);
    if (found != by_name.end()) by_first_use.emplace(first, found->second);
  }
  for (const auto& [name, first] : layout->canonical_names) {
    const auto found = by_first_use.find(first);
    if (found != by_first_use.end()) by_name.try_emplace(name, found->second);
  }
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

// Copies saved tensors into parameters, buffers, parts of sharded parameters and masters.
class SavedCopies {
 public:
  SavedCopies(AcceleratorState& shared, const state::ReadElements& read) : accelerator_state_(shared), read_(read) {
    for (sharding::FullyShardedParameters* model : fully_sharded_models(shared)) {
      sharded_.insert(model->keys().begin(), model->keys().end());
      for (state::ParameterShard& part : model->shards(model->keys())) parts_.emplace(part.key, std::move(part));
    }
  }

  /// \param whole  Whole tensor, also if `here` is a part of a tensor parallel layer.
  void add(const at::Tensor& here, const at::Tensor& whole) {
    const at::Tensor saved = own_part_of(here, whole, read_);
    const void* const key = here.unsafeGetTensorImpl();
    if (accelerator_state_.masters.has(here)) {
      accelerator_state_.masters.set(here, state::whole_of(saved, read_));
    } else if (sharded_.contains(key)) {
      const auto part = parts_.find(key);
      if (part != parts_.end()) add_part(part->second, here, saved);  // otherwise this rank has no element of it
    } else if (saved.is_meta() && here.is_contiguous()) {
      optim::append_copies(copies_, here.detach(), saved, here, {0, here.numel()}, read_);
    } else {
      copies_.push_back({here, state::whole_of(saved, read_)});
    }
  }

  void run() const {
    device::copy_all(copies_);
    device::copy_all(rounded_);
  }

 private:
  void add_part(const state::ParameterShard& part, const at::Tensor& here, const at::Tensor& saved) {
    const at::Tensor& to = part.master.defined() ? part.master : part.value;
    optim::append_copies(copies_, to, saved, here, {part.begin, part.end}, read_);
    if (part.master.defined()) rounded_.push_back({part.value, part.master});
  }

  AcceleratorState& accelerator_state_;
  const state::ReadElements& read_;
  std::unordered_set<const void*> sharded_;
  std::unordered_map<const void*, state::ParameterShard> parts_;
  std::vector<device::CopyPair> copies_, rounded_;
};

}  // namespace

WeightMatch match_weights(const ModelCore& model, const NamedTensors& saved) {
  std::unordered_map<std::string_view, const at::Tensor*> by_name;
  for (const auto& [name, tensor] : saved) by_name.emplace(name, &tensor);
  add_names_of_other_uses(model, by_name);
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
    const at::Tensor whole = whole_shape_of(tensor);
    if (other.sizes() != whole.sizes()) {
      match.misshapen.push_back(
          fmt::format("{} ({} saved, {} here)", name, checkpoint::shape_of(other), checkpoint::shape_of(whole)));
    } else {
      match.pairs.push_back({name, tensor, other});
    }
  }
  for (const auto& [name, tensor] : saved) {
    if (by_name.contains(name) && !is_of_pipeline(model, name)) match.unmet.unexpected.push_back(name);
  }
  accept_uncounted_batches(missing, match.pairs);
  if (!missing.empty()) match.unmet.missing = without_tied(model, missing, match.pairs);
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
  model.complete_step();  // the writer of files reads memory
  NamedTensors weights;
  for (const auto& [name, tensor] : model.parameters()) weights.emplace_back(name, tensor);
  for (const auto& [name, tensor] : model.buffers()) weights.emplace_back(name, tensor);
  return weights;
}

void load_pairs(const std::vector<WeightMatch::Pair>& pairs, AcceleratorState& shared,
                const state::ReadElements& read) {
  SavedCopies copies(shared, read);
  for (const auto& pair : pairs) copies.add(pair.here, pair.saved);
  copies.run();
}

LoadedModel load_weights(const ModelCore& model, AcceleratorState& shared, const checkpoint::SavedWeights& saved,
                         bool strict, std::string_view operation) {
  const WeightMatch match = match_weights(model, saved.tensors);
  check_match(match, strict, model.place(), operation, "the model");
  load_pairs(match.pairs, shared, saved.elements);
  return match.unmet;
}

}  // namespace accelerate::prepared

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/convert.hpp"

#include <fmt/ranges.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <functional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "accelerate/nn/sync_batch_norm.hpp"

namespace accelerate::nn {
namespace {

using torch::nn::Module;
using ModulePtr = std::shared_ptr<Module>;
/// Replaces a layer in the list of a container and in its children.
using ModuleSlot = std::function<void(const std::shared_ptr<SyncBatchNormImpl>&)>;

bool is_stock(const Module& module) {
  return dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module) != nullptr;
}

/// \param replace_in  replace_in(entry, layer) replaces an entry with the original layer; returns false for other
///                    entries.
template <typename Container, typename Replace>
ModuleSlot slot_in(Container* list, const std::string& name, const Replace& replace_in) {
  if (list == nullptr) return {};
  const bool listed = std::any_of(list->begin(), list->end(), [&](auto& entry) { return replace_in(entry, nullptr); });
  if (!listed) return {};
  return [=](const std::shared_ptr<SyncBatchNormImpl>& layer) {
    for (auto& entry : *list) replace_in(entry, layer);  // the list may have the layer several times
    list->replace_module(name, layer);
  };
}

/// Empty if the layer is a member of the holder's class.
ModuleSlot slot_of(Module& holder, const std::string& name, const ModulePtr& stock) {
  using Layer = std::shared_ptr<SyncBatchNormImpl>;
  const auto in_sequential = [stock](torch::nn::AnyModule& entry, const Layer& layer) {
    const bool found = entry.ptr() == stock;
    if (found && layer) entry = layer;
    return found;
  };
  const auto in_list = [stock](ModulePtr& entry, const Layer& layer) {
    const bool found = entry == stock;
    if (found && layer) entry = layer;
    return found;
  };
  const auto in_dict = [in_list](auto& item, const Layer& layer) { return in_list(item.value(), layer); };
  if (ModuleSlot place = slot_in(holder.as<torch::nn::SequentialImpl>(), name, in_sequential)) return place;
  if (ModuleSlot place = slot_in(holder.as<torch::nn::ModuleListImpl>(), name, in_list)) return place;
  return slot_in(holder.as<torch::nn::ModuleDictImpl>(), name, in_dict);
}

struct ConversionResult {
  std::vector<std::pair<ModulePtr, ModuleSlot>> stock;
  std::vector<std::string> stuck;  ///< names of layers that cannot be replaced
  std::vector<SyncBatchNormImpl*> ours;
};

void find_layers(Module& module, const std::string& prefix, std::unordered_set<const Module*>& seen,
                 ConversionResult& found) {
  if (!seen.insert(&module).second) return;
  if (auto* layer = dynamic_cast<SyncBatchNormImpl*>(&module)) found.ours.push_back(layer);
  for (const auto& child : module.named_children()) {
    const std::string name = prefix + child.key();
    if (!is_stock(*child.value())) {
      find_layers(*child.value(), name + ".", seen, found);
      continue;
    }
    ModuleSlot place = synchronised(*child.value()) ? slot_of(module, child.key(), child.value()) : ModuleSlot();
    if (place) {
      found.stock.emplace_back(child.value(), std::move(place));
    } else {
      found.stuck.push_back(name);
    }
  }
}

ConversionResult find_layers(Module& module) {
  ConversionResult found;
  std::unordered_set<const Module*> seen;
  if (is_stock(module)) found.stuck.emplace_back("the module itself");
  find_layers(module, "", seen, found);
  return found;
}

int64_t connect(const std::vector<SyncBatchNormImpl*>& layers, const comm::Group& group) {
  std::vector<SyncBatchNormImpl*> alone;
  for (SyncBatchNormImpl* layer : layers) {
    if (!layer->connected()) alone.push_back(layer);
  }
  if (alone.empty() || group.size() == 1) return 0;
  const comm::Group own = group.duplicate();
  for (SyncBatchNormImpl* layer : alone) layer->connect(own);
  return static_cast<int64_t>(alone.size());
}

}  // namespace

int64_t convert_sync_batchnorm(Module& module, const comm::Group& group) {
  ConversionResult found = find_layers(module);
  if (!found.stuck.empty()) {
    base::fail(ErrorKind::usage, group.place(), "convert_sync_batchnorm",
               "{} of the batch normalisations are held where only their own class can exchange them: {}; declare them "
               "as accelerate::nn::SyncBatchNorm, or put them in a Sequential; nothing was converted",
               found.stuck.size(), fmt::join(found.stuck, ", "));
  }
  // a layer in two places is replaced by one layer
  std::unordered_map<const Module*, std::shared_ptr<SyncBatchNormImpl>> made;
  for (const auto& [stock, place] : found.stock) {
    auto& layer = made[stock.get()];
    if (!layer) {
      layer = synchronised(*stock);
      found.ours.push_back(layer.get());
    }
    place(layer);
  }
  connect(found.ours, group);
  return static_cast<int64_t>(found.ours.size());
}

int64_t connect_sync_batchnorm(Module& module, const comm::Group& group) {
  return connect(find_layers(module).ours, group);
}

}  // namespace accelerate::nn

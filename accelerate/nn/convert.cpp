// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/convert.hpp"

#include <fmt/ranges.h>
#include <torch/nn/modules/batchnorm.h>

#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "accelerate/nn/module_slots.hpp"
#include "accelerate/nn/sync_batch_norm.hpp"

namespace accelerate::nn {
namespace {

using torch::nn::Module;
using ModulePtr = std::shared_ptr<Module>;
using Slot = ModuleSlot<SyncBatchNormImpl>;
bool is_stock(const Module& module) {
  return dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module) != nullptr ||
         dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module) != nullptr;
}

struct ConversionResult {
  std::vector<std::pair<ModulePtr, Slot>> stock;
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
    Slot place;
    if (synchronised(*child.value())) place = slot_of<SyncBatchNormImpl>(module, child.key(), child.value());
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

// SPDX-License-Identifier: Apache-2.0
// Private: replaces a layer within a Sequential, ModuleList or ModuleDict.
#pragma once

#include <torch/nn/modules/container/moduledict.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>

namespace accelerate::nn {

/// Replaces a layer in the list of a container and in its children.
template <typename Layer>
using ModuleSlot = std::function<void(const std::shared_ptr<Layer>&)>;

/// \param replace_in  replace_in(entry, layer) replaces an entry with the original layer; returns false for other
///                    entries.
template <typename Layer, typename Container, typename Replace>
ModuleSlot<Layer> slot_in(Container* list, const std::string& name, const Replace& replace_in) {
  if (list == nullptr) return {};
  const bool listed = std::any_of(list->begin(), list->end(), [&](auto& entry) { return replace_in(entry, nullptr); });
  if (!listed) return {};
  return [=](const std::shared_ptr<Layer>& layer) {
    for (auto& entry : *list) replace_in(entry, layer);  // the list may have the layer several times
    list->replace_module(name, layer);
  };
}

/// \param name  Name of the layer among the children of the holder.
/// \returns the slot, or an empty function if the layer is a member of the holder's class.
template <typename Layer>
ModuleSlot<Layer> slot_of(torch::nn::Module& holder, const std::string& name,
                          const std::shared_ptr<torch::nn::Module>& stock) {
  using LayerPtr = std::shared_ptr<Layer>;
  const auto in_sequential = [stock](torch::nn::AnyModule& entry, const LayerPtr& layer) {
    const bool found = entry.ptr() == stock;
    if (found && layer) entry = layer;
    return found;
  };
  const auto in_list = [stock](std::shared_ptr<torch::nn::Module>& entry, const LayerPtr& layer) {
    const bool found = entry == stock;
    if (found && layer) entry = layer;
    return found;
  };
  const auto in_dict = [in_list](auto& item, const LayerPtr& layer) { return in_list(item.value(), layer); };
  if (auto slot = slot_in<Layer>(holder.as<torch::nn::SequentialImpl>(), name, in_sequential)) return slot;
  if (auto slot = slot_in<Layer>(holder.as<torch::nn::ModuleListImpl>(), name, in_list)) return slot;
  return slot_in<Layer>(holder.as<torch::nn::ModuleDictImpl>(), name, in_dict);
}

}  // namespace accelerate::nn

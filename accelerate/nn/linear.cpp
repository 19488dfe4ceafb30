// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/linear.hpp"

#include <ATen/ops/linear.h>
#include <fmt/format.h>

#include <ostream>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "accelerate/nn/module_slots.hpp"

namespace accelerate::nn {
namespace {

using torch::nn::Module;

struct FoundLayer {
  const torch::nn::LinearImpl* stock;
  ModuleSlot<LinearImpl> slot;
};

bool is_plain(const torch::nn::LinearImpl& layer) { return typeid(layer) == typeid(torch::nn::LinearImpl); }

std::string reason_to_keep(const torch::nn::LinearImpl& layer, const Module& holder) {
  if (!is_plain(layer)) {
    return fmt::format(
        "{} derives from torch::nn::Linear and may have its own forward(); derive it from "
        "accelerate::nn::Linear",
        layer.name());
  }
  return fmt::format("it is a member of {}, which calls the layer that it holds; declare it as accelerate::nn::Linear",
                     holder.name());
}

void find_layers(Module& module, const std::string& prefix, std::unordered_set<const Module*>& seen,
                 std::vector<FoundLayer>& found, LinearConversion& report) {
  if (!seen.insert(&module).second) return;
  for (const auto& child : module.named_children()) {
    const std::string name = prefix + child.key();
    const auto* layer = dynamic_cast<const torch::nn::LinearImpl*>(child.value().get());
    if (layer == nullptr) {
      find_layers(*child.value(), name + ".", seen, found, report);
      continue;
    }
    if (dynamic_cast<const LinearImpl*>(layer) != nullptr) continue;
    ModuleSlot<LinearImpl> slot;
    if (is_plain(*layer)) slot = slot_of<LinearImpl>(module, child.key(), child.value());
    if (slot) {
      found.push_back({layer, std::move(slot)});
      report.exchanged.push_back(name);
    } else {
      report.kept.push_back({name, reason_to_keep(*layer, module)});
    }
  }
}

}  // namespace

LinearImpl::LinearImpl(const torch::nn::LinearImpl& stock) : torch::nn::LinearImpl(stock) {}

at::Tensor LinearImpl::forward(const at::Tensor& input) {
  if (!bias.defined()) return at::linear(input, weight);
  if (input.dim() < 3) return at::linear(input, weight, bias);
  const at::Tensor output = at::linear(input.flatten(0, -2), weight, bias);
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes.back() = output.size(1);
  return output.view(sizes);
}

// LibTorch's clone() creates a torch::nn::Linear, of which this class shares the new tensors.
std::shared_ptr<Module> LinearImpl::clone(const std::optional<at::Device>& device) const {
  const auto copy = torch::nn::LinearImpl::clone(device);
  return std::make_shared<LinearImpl>(*copy->as<torch::nn::LinearImpl>());
}

void LinearImpl::pretty_print(std::ostream& stream) const {
  stream << fmt::format("accelerate::nn::Linear(in_features={}, out_features={}, bias={})", options.in_features(),
                        options.out_features(), options.bias());
}

LinearConversion convert_linear(Module& module) {
  LinearConversion report;
  std::vector<FoundLayer> found;
  std::unordered_set<const Module*> seen;
  const auto* self = dynamic_cast<const torch::nn::LinearImpl*>(&module);
  if (self != nullptr && dynamic_cast<const LinearImpl*>(self) == nullptr) {
    report.kept.push_back({"the module itself", "its owner holds it; construct it as accelerate::nn::Linear"});
  }
  find_layers(module, "", seen, found, report);
  // A layer in two places is replaced by one layer.
  std::unordered_map<const Module*, std::shared_ptr<LinearImpl>> made;
  for (const FoundLayer& each : found) made.try_emplace(each.stock, std::make_shared<LinearImpl>(*each.stock));
  for (const auto& [stock, slot] : found) slot(made.at(stock));
  return report;
}

}  // namespace accelerate::nn

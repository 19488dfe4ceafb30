// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/module_classes.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string_view>

#include "accelerate/units/class_name.hpp"

namespace accelerate::prepared {
namespace {

struct NamedClass {
  std::string module{};
  std::string name{};
};

std::vector<std::string> find_modules(const std::vector<NamedClass>& modules, const std::vector<std::string>& classes,
                                      const RankContext& place) {
  std::vector<std::string> found;
  for (const std::string& wanted : classes) {
    const size_t before = found.size();
    for (const NamedClass& module : modules) {
      if (units::is_class_named(module.name, wanted)) found.push_back(module.module);
    }
    if (found.size() > before) continue;
    std::set<std::string_view> all;
    for (const NamedClass& module : modules) all.insert(units::short_class_name(module.name));
    base::fail(
        ErrorKind::usage, place, "prepare",
        "transformer_cls_names_to_wrap has {}, but no module within the model is of this class; its classes are {}",
        wanted, fmt::join(all, ", "));
  }
  // The first match of a parameter counts, which is then the innermost module.
  const auto depth = [](const std::string& name) { return std::ranges::count(name, '.'); };
  std::ranges::stable_sort(found, std::greater<>(), depth);
  return found;
}

}  // namespace

std::vector<std::string> modules_of_classes(const torch::nn::Module& net, const std::vector<std::string>& classes,
                                            const RankContext& place) {
  if (classes.empty()) return {};
  std::vector<NamedClass> modules;
  for (const auto& module : net.named_modules("", /*include_self=*/false)) {
    modules.push_back({module.key(), module.value()->name()});
  }
  return find_modules(modules, classes, place);
}

std::vector<std::string> modules_of_classes(const torch::jit::Module& net, const std::vector<std::string>& classes,
                                            const RankContext& place) {
  if (classes.empty()) return {};
  std::vector<NamedClass> modules;
  for (const auto& module : net.named_modules()) {
    if (module.name.empty()) continue;
    const auto name = module.value.type()->name();
    modules.push_back({module.name, name ? name->qualifiedName() : std::string()});
  }
  return find_modules(modules, classes, place);
}

}  // namespace accelerate::prepared

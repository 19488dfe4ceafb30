// SPDX-License-Identifier: Apache-2.0
#include "accelerate/offload/max_memory.hpp"

#include <ATen/DeviceAccelerator.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <limits>
#include <set>

#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/checkpoint/weights.hpp"
#include "accelerate/offload/module_items.hpp"

namespace accelerate {
namespace {

using offload::ModuleItem;

bool is_number(const std::string& text) {
  return !text.empty() && text.size() < 4 &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
}

int64_t available_on_cpu() {
  std::ifstream file("/proc/meminfo");
  for (std::string word; file >> word;) {
    int64_t kib = 0;
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  base::fail(ErrorKind::environment, {}, "get_max_memory", "/proc/meminfo does not state MemAvailable; set max_memory");
}

MemoryList free_memory() {
  MemoryList list;
  const auto type = at::getAccelerator(/*checked=*/false);
  const int count = type ? at::accelerator::deviceCount() : 0;
  for (int i = 0; i < count; ++i) {
    try {
      const auto free = at::accelerator::getMemoryInfo(static_cast<c10::DeviceIndex>(i)).first;
      list.emplace_back(std::to_string(i), static_cast<int64_t>(free));
    } catch (const c10::Error& error) {
      base::log(base::LogLevel::warning, {}, "the free memory of device {} is unknown, so it is not used: {}", i,
                error.what_without_backtrace());
    }
  }
  list.emplace_back("cpu", available_on_cpu());
  return list;
}

int64_t rank_of(const std::string& device) {
  if (device == "cpu") return std::numeric_limits<int64_t>::max() - 1;
  if (device == "disk") return std::numeric_limits<int64_t>::max();
  return std::stoll(device);
}

// Submodules that have tensors under their own names, in the order of their first tensors.
std::vector<ModuleItem> modules_with_tensors(const torch::nn::Module& module) {
  const auto modules = module.named_modules("", /*include_self=*/false);
  std::vector<ModuleItem> found;
  std::set<std::string> seen;
  for (const auto& [name, tensor] : offload::distinct_tensors(module)) {
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      const std::string owner = name.substr(0, dot);
      if (seen.insert(owner).second) found.push_back({owner, modules[owner].get()});
    }
  }
  return found;
}

// The largest module of a class that is not split, or 0. Each class counts with its first module.
int64_t first_blocks(const std::vector<ModuleItem>& modules, const std::map<std::string, int64_t>& sizes,
                     const std::vector<std::string>& classes) {
  int64_t largest = 0;
  std::set<std::string> seen;
  for (const auto& [name, module] : modules) {
    if (!offload::is_of_class(*module, classes) || !seen.insert(module->name()).second) continue;
    largest = std::max(largest, sizes.at(name));
  }
  return largest;
}

// Modules without others below them.
int64_t mean_of_last_modules(const std::vector<ModuleItem>& modules, const std::map<std::string, int64_t>& sizes) {
  std::set<std::string> parents;
  for (const ModuleItem& item : modules) {
    const size_t dot = item.name.rfind('.');
    if (dot != std::string::npos) parents.insert(item.name.substr(0, dot));
  }
  int64_t sum = 0, count = 0;
  for (const ModuleItem& item : modules) {
    if (parents.contains(item.name)) continue;
    sum += sizes.at(item.name);
    ++count;
  }
  return sum / std::max<int64_t>(count, 1);
}

}  // namespace

MemorySize::MemorySize(const std::string& text)
    : bytes_(static_cast<int64_t>(checkpoint::parse_size(text, "get_max_memory", "max_memory"))) {}

MemoryList get_max_memory(const MaxMemory& max_memory) {
  if (max_memory.empty()) return free_memory();
  MemoryList list;
  for (const auto& [device, size] : max_memory) {
    if (!is_number(device) && device != "cpu" && device != "disk") {
      base::fail(ErrorKind::usage, {}, "get_max_memory",
                 "max_memory has the device \"{}\", must be the number of an accelerator device, \"cpu\" or \"disk\"",
                 device);
    }
    if (size.bytes() < 0) {
      base::fail(ErrorKind::usage, {}, "get_max_memory", "max_memory of {} is {}, must be at least 0", device,
                 size.bytes());
    }
    list.emplace_back(device, size.bytes());
  }
  std::ranges::sort(list, {}, [](const auto& limit) { return rank_of(limit.first); });
  return list;
}

MemoryList get_balanced_memory(const torch::nn::Module& module, const MaxMemory& max_memory,
                               const std::vector<std::string>& no_split_module_classes,
                               std::optional<c10::ScalarType> dtype, const SpecialDtypes& special_dtypes,
                               bool low_zero) {
  MemoryList list = get_max_memory(max_memory);
  std::vector<int64_t*> limits;  // of the accelerator devices with memory
  for (auto& [device, bytes] : list) {
    if (is_number(device) && bytes > 0) limits.push_back(&bytes);
  }
  if (limits.empty()) return list;
  const auto devices = static_cast<int64_t>(limits.size());
  if (devices == 1) {
    low_zero = false;
    // The rest is for activations.
    if (max_memory.empty()) *limits[0] = static_cast<int64_t>(static_cast<double>(*limits[0]) * 0.9);
  }
  const auto sizes = compute_module_sizes(module, dtype, special_dtypes);
  const auto modules = modules_with_tensors(module);
  const int64_t block = first_blocks(modules, sizes, no_split_module_classes);
  const auto buffer =
      static_cast<int64_t>(1.25 * static_cast<double>(std::max(block, mean_of_last_modules(modules, sizes))));
  const int64_t each = sizes.at("") / (low_zero ? devices - 1 : devices) + buffer;
  // The last device keeps its limit, because each of the others may get slightly less than its part.
  for (size_t i = 0; i + 1 < limits.size(); ++i) {
    if (!(low_zero && i == 0)) *limits[i] = std::min(each, *limits[i]);
  }
  if (low_zero) {
    int64_t others = 0;
    for (size_t i = 1; i < limits.size(); ++i) others += *limits[i];
    *limits[0] = std::min(std::max<int64_t>(0, sizes.at("") - others), *limits[0]);
  }
  return list;
}

}  // namespace accelerate

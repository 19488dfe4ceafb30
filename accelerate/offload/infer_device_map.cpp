// SPDX-License-Identifier: Apache-2.0
// The algorithm of Hugging Face Accelerate's infer_auto_device_map(), step by step, so that the results are equal.
#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <utility>

#include "accelerate/base/log.hpp"
#include "accelerate/offload/device_map.hpp"
#include "accelerate/offload/module_items.hpp"

namespace accelerate {
namespace {

using offload::is_inside;
using offload::ModuleItem;

// As in Hugging Face Accelerate, "a" selects "a.weight" and also "b.a.weight". A narrower test gives other maps of
// models with ties.
bool selects(const std::string& item, const std::string& parameter) {
  return (parameter + ".").find(item + ".") != std::string::npos;
}

// Joins entries of one device below a module, from the top down.
void clean_device_map(DeviceMap& map, const std::string& module) {
  const std::string prefix = module.empty() ? "" : module + ".";
  std::vector<std::string> names;
  std::set<std::string> devices;
  for (const auto& [name, device] : map) {
    if (!name.starts_with(prefix)) continue;
    names.push_back(name);
    devices.insert(device);
  }
  if (devices.size() == 1 && names.size() > 1) {
    for (const std::string& name : names) map.erase(name);
    map[module] = *devices.begin();
    return;
  }
  std::set<std::string> children;
  for (const std::string& name : names) {
    if (name.size() > module.size()) children.insert(name.substr(0, name.find('.', prefix.size())));
  }
  for (const std::string& child : children) {
    if (child != module) clean_device_map(map, child);
  }
}

class Placement {
 public:
  Placement(const torch::nn::Module& module, const MemoryList& limits, const DeviceMapOptions& options)
      : options_(options),
        devices_(limits),
        sizes_(compute_module_sizes(module, options.dtype, options.special_dtypes)),
        ties_(find_tied_parameters(module)),
        items_(offload::parts_of(module, "")) {
    const auto is_disk = [](const auto& limit) { return limit.first == "disk"; };
    if (std::ranges::none_of(devices_, is_disk)) devices_.emplace_back("disk", 0);
    for (const auto& [name, buffer] : offload::distinct_buffers(module, /*recurse=*/false)) items_.push_back({name});
    largest_ = offload::find_largest_layers(items_, sizes_, options_.no_split_module_classes);
  }

  DeviceMap place_all() {
    while (!items_.empty()) {
      const ModuleItem item = items_.front();
      items_.erase(items_.begin());
      update_largest(item.name);
      place(item);
    }
    if (options_.clean_result) clean_device_map(map_, "");
    report_buffers();
    return std::move(map_);
  }

 private:
  struct TiedItem {
    std::string parameter;
    ModuleItem item;
  };

  [[nodiscard]] int64_t size_of(const std::string& name) const {
    const auto found = sizes_.find(name);
    return found == sizes_.end() ? 0 : found->second;
  }
  [[nodiscard]] const std::string& device() const { return devices_[current_].first; }
  [[nodiscard]] bool is_disk() const { return device() == "disk"; }
  // The first accelerator device and the CPU must have space for the largest layer that is on a slower device.
  [[nodiscard]] int64_t reserved() const {
    const bool is_main = device() == "cpu" || (current_ == 0 && !is_disk());
    return is_main ? largest_.bytes : 0;
  }
  [[nodiscard]] int64_t limit() const { return devices_[current_].second - reserved(); }

  void update_largest(const std::string& taken) {
    std::erase_if(largest_.names, [&](const std::string& name) { return is_inside(name, taken); });
    if (largest_.names.empty()) find_largest();
  }

  void find_largest() {
    std::vector<ModuleItem> modules;
    for (const ModuleItem& item : items_) {
      if (item.module != nullptr) modules.push_back(item);
    }
    largest_ = offload::find_largest_layers(modules, sizes_, options_.no_split_module_classes);
  }

  // Parameters that the item does not select and that are tied to one that it selects, with the remaining items that
  // contain them.
  [[nodiscard]] std::vector<TiedItem> ties_of(const std::string& name, const std::vector<ModuleItem>& items) const {
    std::vector<TiedItem> found;
    for (const auto& group : ties_) {
      if (std::ranges::none_of(group, [&](const auto& other) { return selects(name, other); })) continue;
      for (const std::string& parameter : group) {
        if (selects(name, parameter)) continue;
        const auto item = std::ranges::find_if(items, [&](const auto& i) { return is_inside(parameter, i.name); });
        if (item != items.end()) found.push_back({parameter, *item});
      }
    }
    return found;
  }

  [[nodiscard]] int64_t size_with(const std::string& name, const std::vector<TiedItem>& ties) const {
    int64_t size = size_of(name);
    for (const TiedItem& tie : ties) size += size_of(tie.item.name) - size_of(tie.parameter);
    return size;
  }

  void place(const ModuleItem& item) {
    const int64_t own = size_of(item.name);
    const auto ties = ties_of(item.name, items_);
    const int64_t with_ties = size_with(item.name, ties);
    int64_t& used = used_[device()];
    if (is_disk() || used + with_ties <= limit()) {
      used += with_ties;
      return put(item, ties);
    }
    if (!ties.empty() && used + own <= limit() && split_tied(item, ties)) return;
    if (used + own >= limit() && offload::can_be_split(item, options_.no_split_module_classes)) return split(item);
    if (used == 0 && options_.fallback_allocation && find_fallback(item, with_ties)) return;
    const auto is_here = [&](const auto& part) { return part.second == device(); };
    if (std::ranges::none_of(map_, is_here)) {
      log_decision(base::LogLevel::info,
                   "device {} has no part: {} and the reserved space for the largest layer need {} bytes, the limit is "
                   "{}",
                   device(), item.name, with_ties + reserved(), devices_[current_].second);
    }
    used += reserved();
    ++current_;
    fallbacks_.clear();
    items_.insert(items_.begin(), item);
  }

  // Puts the first remaining part that fits beside the largest layer and the item before the item.
  bool find_fallback(const ModuleItem& item, int64_t with_ties) {
    const int64_t space = devices_[current_].second - std::max(largest_.bytes, with_ties);
    std::vector<ModuleItem> rest = items_;
    while (!rest.empty()) {
      const ModuleItem part = rest.front();
      rest.erase(rest.begin());
      if (size_with(part.name, ties_of(part.name, rest)) > space) {
        if (!offload::can_be_split(part, options_.no_split_module_classes)) continue;
        const auto parts = offload::parts_of(*part.module, part.name);
        rest.insert(rest.begin(), parts.begin(), parts.end());
        continue;
      }
      // A part that is tied to the item or to an earlier part may not fit after all.
      if (!fallbacks_.insert(part.name).second) return false;
      take_out(part.name);
      items_.insert(items_.begin(), {part, item});
      return true;
    }
    return false;
  }

  // Removes a part from the remaining items, after the modules that contain it are divided.
  void take_out(const std::string& name) {
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
      const auto owner = find_item(name.substr(0, dot));
      if (owner == items_.end()) continue;
      const auto parts = offload::parts_of(*owner->module, owner->name);
      items_.insert(items_.erase(owner), parts.begin(), parts.end());
    }
    items_.erase(find_item(name));
  }

  [[nodiscard]] std::vector<ModuleItem>::iterator find_item(const std::string& name) {
    return std::ranges::find_if(items_, [&](const ModuleItem& item) { return item.name == name; });
  }

  void put(const ModuleItem& item, const std::vector<TiedItem>& ties) {
    log_decision(base::LogLevel::debug, "{} is on {}, which then has {} bytes", item.name, device(), used_[device()]);
    if (item.module != nullptr) {
      buffers_[device()] += compute_module_sizes(*item.module, options_.dtype, options_.special_dtypes, true).at("");
    }
    map_[item.name] = device();
    for (const TiedItem& tie : ties) {
      map_[tie.item.name] = device();
      std::erase_if(items_, [&](const ModuleItem& other) { return other.name == tie.item.name; });
    }
  }

  void split(const ModuleItem& item) {
    log_decision(base::LogLevel::debug, "{} does not fit on {} and is divided", item.name, device());
    const auto parts = offload::parts_of(*item.module, item.name);
    items_.insert(items_.begin(), parts.begin(), parts.end());
    find_largest();
  }

  bool split_tied(const ModuleItem& item, const std::vector<TiedItem>& ties) {
    for (const TiedItem& tie : ties) {
      if (!offload::can_be_split(tie.item, options_.no_split_module_classes)) continue;
      log_decision(base::LogLevel::debug, "{}, which is tied to {}, does not fit on {} and is divided", tie.item.name,
                   item.name, device());
      const auto position = find_item(tie.item.name);
      const auto parts = offload::parts_of(*tie.item.module, tie.item.name);
      items_.insert(items_.erase(position), parts.begin(), parts.end());
      items_.insert(items_.begin(), item);
      find_largest();
      return true;
    }
    return false;
  }

  // Buffers of parts on the CPU and the disk are on an accelerator device.
  void report_buffers() {
    const int64_t bytes = buffers_["cpu"] + buffers_["disk"];
    if (options_.offload_buffers || bytes == 0) return;
    const auto is_accelerator = [](const auto& limit) { return limit.first != "cpu" && limit.first != "disk"; };
    const auto has_space = [&](const auto& limit) {
      return is_accelerator(limit) && limit.second >= used_[limit.first] + bytes;
    };
    if (std::ranges::none_of(devices_, is_accelerator) || std::ranges::any_of(devices_, has_space)) return;
    log_decision(base::LogLevel::warning,
                 "the buffers of parts on the CPU and the disk have {} bytes, which no accelerator device has left in "
                 "its limit; set offload_buffers to copy them while they are used",
                 bytes);
  }

  template <typename... Args>
  static void log_decision(base::LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
    if (level < base::log_level()) return;
    base::log(level, {}, "infer_auto_device_map: {}", fmt::format(format, std::forward<Args>(args)...));
  }

  const DeviceMapOptions& options_;
  MemoryList devices_;
  std::map<std::string, int64_t> sizes_;
  std::vector<std::vector<std::string>> ties_;
  std::vector<ModuleItem> items_;  // not placed yet
  offload::LargestLayers largest_{};
  size_t current_ = 0;
  std::map<std::string, int64_t> used_{};
  std::map<std::string, int64_t> buffers_{};  // bytes by device
  std::set<std::string> fallbacks_{};         // of the current device
  DeviceMap map_{};
};

}  // namespace

DeviceMap infer_auto_device_map(const torch::nn::Module& module, const MemoryList& limits,
                                const DeviceMapOptions& options) {
  return Placement(module, limits, options).place_all();
}

DeviceMap infer_auto_device_map(const torch::nn::Module& module, const DeviceMapOptions& options) {
  return infer_auto_device_map(module, get_max_memory(options.max_memory), options);
}

}  // namespace accelerate

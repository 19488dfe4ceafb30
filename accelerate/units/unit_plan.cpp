// SPDX-License-Identifier: Apache-2.0
#include "accelerate/units/unit_plan.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <string_view>

namespace accelerate::units {
namespace {

std::vector<std::string_view> split(std::string_view name) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    parts.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

bool is_index(std::string_view part) {
  return !part.empty() && std::ranges::all_of(part, [](unsigned char c) { return std::isdigit(c) != 0; });
}

std::string join(std::span<const std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text.append(text.empty() ? "" : ".").append(part);
  return text;
}

bool matches(std::span<const std::string_view> modules, std::span<const std::string_view> pattern) {
  return pattern.size() <= modules.size() &&
         std::equal(pattern.begin(), pattern.end(), modules.begin(),
                    [](std::string_view wanted, std::string_view part) { return wanted == "*" || wanted == part; });
}

class UnitFinder {
 public:
  UnitFinder(std::span<const UnitItem> items, const UnitOptions& options) : items_(items), options_(options) {
    for (const UnitItem& item : items) {
      whole_ += size_of(item);
      const auto parts = split(item.name);
      for (size_t length = 1; length < parts.size(); ++length) {
        sizes_[join(std::span(parts).first(length))] += size_of(item);
      }
    }
  }

  // Returns the name of the module that is the parameter's unit, "" if there is none.
  [[nodiscard]] std::string module_of(const UnitItem& item) const {
    const auto parts = split(item.name);
    const auto modules = std::span(parts).first(parts.size() - 1);
    if (!options_.units.empty()) {
      for (const std::string& unit : options_.units) {
        const auto pattern = split(unit);
        if (matches(modules, pattern)) return join(modules.first(pattern.size()));
      }
      return {};
    }
    std::string found;
    for (size_t i = 0; i < modules.size(); ++i) {
      if (!is_index(modules[i])) continue;
      const auto child = join(modules.first(i + 1));
      if (sizes_.at(child) < threshold()) break;
      found = child;
      if (4 * sizes_.at(child) <= whole_) break;
    }
    return found;
  }

  [[nodiscard]] int64_t size_of(const UnitItem& item) const {
    return options_.min_num_params > 0 ? item.numel : item.bytes;
  }
  [[nodiscard]] int64_t threshold() const {
    return options_.min_num_params > 0 ? options_.min_num_params : options_.min_bytes;
  }

 private:
  std::span<const UnitItem> items_;
  const UnitOptions& options_;
  int64_t whole_ = 0;
  std::map<std::string, int64_t, std::less<>> sizes_;  // by module
};

}  // namespace

std::vector<int64_t> find_units(std::span<const UnitItem> items, const UnitOptions& options) {
  const UnitFinder finder(items, options);
  std::vector<int64_t> units;
  std::map<std::string, int64_t> numbers;
  int64_t next = 0;
  int64_t pack = -1, packed = 0;
  for (const UnitItem& item : items) {
    const std::string module = finder.module_of(item);
    if (!module.empty()) {
      const auto [entry, is_new] = numbers.try_emplace(module, next);
      if (is_new) {
        ++next;
        pack = -1;  // parameters before and after a list are not used at the same time
      }
      units.push_back(entry->second);
      continue;
    }
    if (pack < 0 || packed >= finder.threshold()) {
      pack = next++;
      packed = 0;
    }
    packed += finder.size_of(item);
    units.push_back(pack);
  }
  return units;
}

}  // namespace accelerate::units

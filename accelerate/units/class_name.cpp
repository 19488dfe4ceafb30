// SPDX-License-Identifier: Apache-2.0
#include "accelerate/units/class_name.hpp"

namespace accelerate::units {
namespace {

constexpr std::string_view kSuffix = "Impl";

}  // namespace

std::string_view short_class_name(std::string_view name) {
  const size_t colons = name.substr(0, name.find('<')).rfind("::");  // template arguments have namespaces, too
  if (colons != std::string_view::npos) name.remove_prefix(colons + 2);
  const size_t dot = name.rfind('.');
  if (dot != std::string_view::npos) name.remove_prefix(dot + 1);
  if (name.size() > kSuffix.size() && name.ends_with(kSuffix)) name.remove_suffix(kSuffix.size());
  return name;
}

bool is_class_named(std::string_view name, std::string_view wanted) {
  if (wanted == name) return true;
  const std::string_view last = short_class_name(name);
  return wanted.starts_with(last) && (wanted.size() == last.size() || wanted.substr(last.size()) == kSuffix);
}

}  // namespace accelerate::units

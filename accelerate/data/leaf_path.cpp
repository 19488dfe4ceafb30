// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/leaf_path.hpp"

#include <fmt/format.h>

namespace accelerate::data {

std::string LeafPath::text() const {
  if (outer == nullptr) return "";
  return outer->text() + (key ? fmt::format("[\"{}\"]", *key) : fmt::format("[{}]", number));
}

}  // namespace accelerate::data

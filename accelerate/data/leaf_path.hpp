// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate::data {

/// Path of a leaf in a sample or batch, for errors: members by number, map entries by key, as in [0]["mask"][2]. Refers
/// to its parent path; the text is only built when it is needed.
struct LeafPath {
  const LeafPath* outer = nullptr;
  int64_t number = 0;
  std::optional<std::string_view> key{};

  [[nodiscard]] LeafPath member(size_t place) const { return {.outer = this, .number = static_cast<int64_t>(place)}; }
  /// \param place  Position of the key, printed if the key is not a string.
  template <typename Key>
  [[nodiscard]] LeafPath entry(const Key& named, size_t place) const {
    LeafPath path = member(place);
    if constexpr (std::convertible_to<const Key&, std::string_view>) path.key = named;
    return path;
  }

  /// "" for the root.
  [[nodiscard]] std::string text() const;
  /// " at [0]", or "" for the root.
  [[nodiscard]] std::string at() const { return outer == nullptr ? "" : " at " + text(); }
};

}  // namespace accelerate::data

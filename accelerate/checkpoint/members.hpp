// SPDX-License-Identifier: Apache-2.0
// Private: members of a dict in a file of torch.save, each of the right type.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/archive/origin.hpp"
#include "accelerate/archive/pickle_value.hpp"

namespace accelerate::checkpoint {

/// Every member throws Error (data) with the file, the member and what it is where it is missing or of another type.
class Members {
 public:
  /// dict    outlives it, like origin
  /// where   what it is in the file, for errors: "the state"
  Members(const archive::PickleValue& dict, std::string where, const archive::Origin& origin);

  [[nodiscard]] bool has(std::string_view key) const { return archive::find(dict_, key) != nullptr; }
  [[nodiscard]] const archive::PickleValue& value(std::string_view key) const;
  [[nodiscard]] int64_t integer(std::string_view key) const;
  /// Integers count too.
  [[nodiscard]] double number(std::string_view key) const;
  [[nodiscard]] bool boolean(std::string_view key) const;
  [[nodiscard]] const std::string& text(std::string_view key) const;
  /// A list or a tuple.
  [[nodiscard]] const archive::PickleItems& items(std::string_view key) const;
  [[nodiscard]] std::vector<double> numbers(std::string_view key) const;
  [[nodiscard]] Members members(std::string_view key) const;

  [[noreturn]] void wrong(std::string_view key, const archive::PickleValue& value, std::string_view expected) const;

 private:
  const archive::PickleValue& dict_;
  std::string where_;
  const archive::Origin& origin_;
};

[[nodiscard]] std::optional<double> number_in(const archive::PickleValue& value);
/// Null: neither a list nor a tuple.
[[nodiscard]] const archive::PickleItems* items_in(const archive::PickleValue& value);
/// Bytes, also as protocol 2 writes them: a text of Latin-1 to be encoded.
[[nodiscard]] std::optional<std::string> bytes_in(const archive::PickleValue& value);

}  // namespace accelerate::checkpoint

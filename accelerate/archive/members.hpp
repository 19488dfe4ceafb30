// SPDX-License-Identifier: Apache-2.0
// Typed access to the members of a dict from a file (torch.save or JSON).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/archive/origin.hpp"
#include "accelerate/archive/pickle_value.hpp"

namespace accelerate::archive {

/// Every accessor throws Error (data) with file and member if the member is missing or has another type.
class Members {
 public:
  /// \param dict   Must outlive this object, like `origin`.
  /// \param where  Description of the dict for errors: "the state".
  Members(const PickleValue& dict, std::string where, const Origin& origin);

  [[nodiscard]] bool has(std::string_view key) const { return find(dict_, key) != nullptr; }
  [[nodiscard]] const PickleValue& value(std::string_view key) const;
  [[nodiscard]] int64_t integer(std::string_view key) const;
  [[nodiscard]] uint64_t natural(std::string_view key) const;
  /// Also accepts integers.
  [[nodiscard]] double number(std::string_view key) const;
  [[nodiscard]] bool boolean(std::string_view key) const;
  [[nodiscard]] const std::string& text(std::string_view key) const;
  /// Accepts a list or a tuple.
  [[nodiscard]] const PickleItems& items(std::string_view key) const;
  [[nodiscard]] std::vector<double> numbers(std::string_view key) const;
  [[nodiscard]] std::vector<uint64_t> naturals(std::string_view key) const;
  [[nodiscard]] Members members(std::string_view key) const;
  /// Calls read(Members) for each dict of a list. Errors name it "files[0]".
  template <typename Read>
  void each(std::string_view key, const Read& read) const {
    size_t i = 0;
    for (const PickleValue& item : items(key)) read(Members(item, fmt::format("{}[{}]", key, i++), origin_));
  }
  [[nodiscard]] const std::string& where() const { return where_; }

  [[noreturn]] void wrong(std::string_view key, const PickleValue& value, std::string_view expected) const;

 private:
  const PickleValue& dict_;
  std::string where_;
  const Origin& origin_;
};

[[nodiscard]] std::optional<double> number_in(const PickleValue& value);
/// Returns the items of a list or tuple; null for other values.
[[nodiscard]] const PickleItems* items_in(const PickleValue& value);
/// Returns bytes, also in the form of protocol 2: Latin-1 text to be encoded.
[[nodiscard]] std::optional<std::string> bytes_in(const PickleValue& value);

}  // namespace accelerate::archive

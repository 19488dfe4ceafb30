// SPDX-License-Identifier: Apache-2.0
// Content of a pickle as values.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace accelerate::archive {

class PickleValue;
using PickleItems = std::vector<PickleValue>;
using PickleEntries = std::vector<std::pair<PickleValue, PickleValue>>;

/// Python's None.
struct PickleNone {
  bool operator==(const PickleNone&) const = default;
};
/// An integer beyond 64 bits: two's complement, lowest byte first.
struct PickleBigInteger {
  std::string bytes{};
  bool operator==(const PickleBigInteger&) const = default;
};
struct PickleBytes {
  std::string bytes{};
  bool operator==(const PickleBytes&) const = default;
};
struct PickleList {
  std::shared_ptr<PickleItems> items = std::make_shared<PickleItems>();
};
struct PickleTuple {
  std::shared_ptr<PickleItems> items = std::make_shared<PickleItems>();
};
/// A dict in its order.
struct PickleDict {
  std::shared_ptr<PickleEntries> entries = std::make_shared<PickleEntries>();
};
/// A function, class or constant of a Python module by name. It is never looked up or executed.
struct PickleGlobal {
  std::string module{}, name{};
  bool operator==(const PickleGlobal&) const = default;
  [[nodiscard]] std::string str() const { return module + "." + name; }
};
/// An object that Python would create by calling a global and then filling the result.
struct PickleObject {
  struct Parts;
  std::shared_ptr<Parts> parts;
};
/// A reference by name to data elsewhere in the file, such as torch's storages.
struct PicklePersistent {
  std::shared_ptr<PickleItems> id = std::make_shared<PickleItems>();
};

/// Containers are shared, as in Python: two copies refer to the same list.
class PickleValue
    : public std::variant<PickleNone, bool, int64_t, PickleBigInteger, double, std::string, PickleBytes, PickleList,
                          PickleTuple, PickleDict, PickleGlobal, PickleObject, PicklePersistent> {
 public:
  using variant::variant;

  template <typename T>
  [[nodiscard]] const T* as() const {
    return std::get_if<T>(this);
  }
  /// Returns the kind of the value for errors: "a list", "an integer", ...
  [[nodiscard]] std::string_view kind() const;
};

struct PickleObject::Parts {
  PickleGlobal global{};
  PickleItems arguments{};
  PickleEntries entries{};  ///< of a dict-like object
  PickleItems items{};      ///< of a list-like object
  PickleValue state{};      ///< the state passed to it; None by default
};

/// Returns the value of a key in a dict or dict-like object; null if `dict` is neither or lacks the key.
[[nodiscard]] const PickleValue* find(const PickleValue& dict, std::string_view key);

/// Returns the entries of a dict or a dict-like object (collections.OrderedDict); null for others.
[[nodiscard]] const PickleEntries* entries_of(const PickleValue& value);

}  // namespace accelerate::archive

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/pickle_value.hpp"

#include <array>

namespace accelerate::archive {

std::string_view PickleValue::kind() const {
  constexpr std::array<std::string_view, 13> names{"None",   "a bool",    "an integer", "a big integer", "a float",
                                                   "a text", "bytes",     "a list",     "a tuple",       "a dict",
                                                   "a name", "an object", "a storage"};
  return names.at(index());
}

const PickleEntries* entries_of(const PickleValue& value) {
  if (const auto* dict = value.as<PickleDict>()) return dict->entries.get();
  if (const auto* object = value.as<PickleObject>()) {
    const auto& parts = *object->parts;
    if (parts.global == PickleGlobal{"collections", "OrderedDict"}) return &parts.entries;
  }
  return nullptr;
}

const PickleValue* find(const PickleValue& dict, std::string_view key) {
  const auto* entries = entries_of(dict);
  if (entries == nullptr) return nullptr;
  for (const auto& [name, value] : *entries) {
    const auto* text = name.as<std::string>();
    if (text != nullptr && *text == key) return &value;
  }
  return nullptr;
}

}  // namespace accelerate::archive

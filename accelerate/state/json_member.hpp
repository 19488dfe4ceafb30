// SPDX-License-Identifier: Apache-2.0
// Typed access to the members of a saved state's JSON. Available if the program has nlohmann/json.
#pragma once

#if __has_include(<nlohmann/json.hpp>)

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "accelerate/base/error.hpp"

namespace accelerate::state {

/// Returns the JSON as text for messages, with invalid UTF-8 replaced.
inline std::string shown(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// \param type  Expected type for the message.
/// \throws Error (data) if the member is missing or has another type.
template <typename Value>
Value member(const nlohmann::json& json, const char* key, bool right_type, const char* type) {
  if (!json.contains(key)) {
    base::fail(ErrorKind::data, {}, "load_state", "the saved state has no \"{}\"; it was not written by this library",
               key);
  }
  if (!right_type) {
    base::fail(ErrorKind::data, {}, "load_state", "\"{}\" of the saved state is {}, must be {}", key, shown(json[key]),
               type);
  }
  return json[key].template get<Value>();
}

inline int64_t integer(const nlohmann::json& json, const char* key) {
  constexpr auto most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const bool is_integer = json.contains(key) && json[key].is_number_integer() &&
                          !(json[key].is_number_unsigned() && json[key].template get<uint64_t>() > most);
  return member<int64_t>(json, key, is_integer, "an integer of 64 bits");
}

inline bool boolean(const nlohmann::json& json, const char* key) {
  return member<bool>(json, key, json.contains(key) && json[key].is_boolean(), "true or false");
}

inline std::string text(const nlohmann::json& json, const char* key) {
  return member<std::string>(json, key, json.contains(key) && json[key].is_string(), "a string");
}

/// \throws Error (data) if the JSON is not an object, or was written by another version of this library.
inline void check_version(const nlohmann::json& json, int64_t version) {
  if (!json.is_object()) {
    base::fail(ErrorKind::data, {}, "load_state", "the saved state is {}, must be a JSON object", json.type_name());
  }
  if (const int64_t saved = integer(json, "version"); saved != version) {
    base::fail(ErrorKind::data, {}, "load_state", "the saved state has version {}, this library reads {}", saved,
               version);
  }
}

}  // namespace accelerate::state

#endif  // nlohmann/json.hpp

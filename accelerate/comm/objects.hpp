// SPDX-License-Identifier: Apache-2.0
// Collectives for nlohmann::json values. Available if the program has nlohmann/json.
#pragma once

#if __has_include(<nlohmann/json.hpp>)

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "accelerate/comm/group.hpp"

namespace accelerate::comm {
namespace detail {

inline std::string pack(const nlohmann::json& object) {
  const auto bytes = nlohmann::json::to_cbor(object);
  return {bytes.begin(), bytes.end()};
}

inline std::vector<nlohmann::json> unpack(const std::vector<std::string>& packed) {
  std::vector<nlohmann::json> objects;
  std::transform(packed.begin(), packed.end(), std::back_inserter(objects),
                 [](const std::string& bytes) { return nlohmann::json::from_cbor(bytes); });
  return objects;
}

}  // namespace detail

/// Returns every rank's object, in rank order.
inline std::vector<nlohmann::json> all_gather_object(const Group& group, const nlohmann::json& object) {
  return detail::unpack(group.all_gather_bytes(detail::pack(object)));
}

/// Returns every rank's object on the root, and an empty list on other ranks.
inline std::vector<nlohmann::json> gather_object(const Group& group, const nlohmann::json& object, int64_t root = 0) {
  return detail::unpack(group.gather_bytes(detail::pack(object), root));
}

/// Returns the root's object on every rank.
inline nlohmann::json broadcast_object(const Group& group, const nlohmann::json& object, int64_t root = 0) {
  return nlohmann::json::from_cbor(group.broadcast_bytes(detail::pack(object), root));
}

}  // namespace accelerate::comm

#endif  // nlohmann/json.hpp

// SPDX-License-Identifier: Apache-2.0
// nlohmann::json values between ranks; there when the program has nlohmann's signature.
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

/// Every rank's object, in rank order.
inline std::vector<nlohmann::json> all_gather_object(const Group& group, const nlohmann::json& object) {
  return detail::unpack(group.all_gather_bytes(detail::pack(object)));
}

/// On root every rank's object, elsewhere empty.
inline std::vector<nlohmann::json> gather_object(const Group& group, const nlohmann::json& object, int64_t root = 0) {
  return detail::unpack(group.gather_bytes(detail::pack(object), root));
}

/// Root's object on every rank.
inline nlohmann::json broadcast_object(const Group& group, const nlohmann::json& object, int64_t root = 0) {
  return nlohmann::json::from_cbor(group.broadcast_bytes(detail::pack(object), root));
}

}  // namespace accelerate::comm

#endif  // nlohmann/json.hpp

// SPDX-License-Identifier: Apache-2.0
// Replaces the value types of pairs, tuples and maps.
#pragma once

#include <map>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace accelerate::data::detail {

template <typename Tuple, typename... Members>
struct RebindTuple {
  using type = std::tuple<Members...>;
};
template <typename A, typename B, typename First, typename Second>
struct RebindTuple<std::pair<A, B>, First, Second> {
  using type = std::pair<First, Second>;
};
/// std::pair for a pair, otherwise std::tuple.
template <typename Tuple, typename... Members>
using rebind_tuple = typename RebindTuple<Tuple, Members...>::type;

template <typename Map, typename Value>
struct RebindMap {
  using type = std::map<typename Map::key_type, Value>;
};
template <typename Key, typename Old, typename Compare, typename Allocator, typename Value>
struct RebindMap<std::map<Key, Old, Compare, Allocator>, Value> {
  using type = std::map<Key, Value, Compare>;
};
template <typename Key, typename Old, typename Hash, typename Equal, typename Allocator, typename Value>
struct RebindMap<std::unordered_map<Key, Old, Hash, Equal, Allocator>, Value> {
  using type = std::unordered_map<Key, Value, Hash, Equal>;
};
/// Keeps the key type. A map other than std::map and std::unordered_map becomes a std::map.
template <typename Map, typename Value>
using rebind_map = typename RebindMap<Map, Value>::type;

}  // namespace accelerate::data::detail

// SPDX-License-Identifier: Apache-2.0
// Visits the tensors of a tree: pairs, tuples, arrays, vectors, maps, optionals and structs, nested to any depth.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <concepts>
#include <optional>
#include <ranges>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace accelerate::tree {

/// The customization point for structs: a function found by argument-dependent lookup, or a member function, that
/// returns std::tie of the members.
///
///   struct Sample { at::Tensor image, label; std::string name; };
///   inline auto tree_members(Sample& s) { return std::tie(s.image, s.label, s.name); }
template <typename T>
concept HasFreeMembers = requires(T& value) {
  tree_members(value);
};
template <typename T>
concept HasOwnMembers = requires(T& value) {
  value.tree_members();
};

namespace detail {

template <typename T>
concept Tensor = std::derived_from<T, at::TensorBase>;
template <typename T>
concept Struct = HasFreeMembers<T> || HasOwnMembers<T>;
template <typename T>
concept Tuple = !std::ranges::range<T> && requires {
  std::tuple_size<T>::value;
};
template <typename T>
concept Map = std::ranges::range<T> && requires {
  typename T::mapped_type;
};
template <typename T>
concept OrderedMap = Map<T> && requires {
  typename T::key_compare;
};
template <typename T>
concept Sequence = std::ranges::range<T> && !Map<T> && requires(T & value) {
  { *value.begin() } -> std::convertible_to<const typename T::value_type&>;
};
template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

template <typename T>
auto members(T& value) {
  if constexpr (HasOwnMembers<T>) {
    return value.tree_members();
  } else {
    return tree_members(value);
  }
}

/// If some is true: whether any leaf is a tensor. Otherwise: whether every leaf is a tensor.
template <bool some, typename T>
struct Holds;

template <bool some, typename... Ts>
constexpr bool holds(std::tuple<Ts...>*) {
  if constexpr (some) {
    return (Holds<true, std::remove_cvref_t<Ts>>::value || ...);
  } else {
    return (Holds<false, std::remove_cvref_t<Ts>>::value && ...);
  }
}

template <bool some, typename T, size_t... I>
constexpr bool holds_elements(std::index_sequence<I...>) {
  return holds<some>(static_cast<std::tuple<std::tuple_element_t<I, T>...>*>(nullptr));
}

template <bool some, typename T>
constexpr bool holds_leaf() {
  if constexpr (Tensor<T>) {
    return true;
  } else if constexpr (Struct<T>) {
    return holds<some>(static_cast<decltype(members(std::declval<T&>()))*>(nullptr));
  } else if constexpr (Tuple<T>) {
    return holds_elements<some, T>(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (Map<T>) {
    return Holds<some, typename T::mapped_type>::value;
  } else if constexpr (Sequence<T> || IsOptional<T>::value) {
    return Holds<some, typename T::value_type>::value;
  } else {
    return false;
  }
}

template <bool some, typename T>
struct Holds : std::bool_constant<holds_leaf<some, T>()> {};

template <typename T>
constexpr bool refers();

/// If own is true, checks the elements of the tuple itself, not the result of tree_members().
template <bool own, typename T, size_t... I>
constexpr bool element_refers(std::index_sequence<I...>) {
  return ((own && std::is_reference_v<std::tuple_element_t<I, T>>) || ...) ||
         (refers<std::remove_cvref_t<std::tuple_element_t<I, T>>>() || ...);
}

template <typename T>
constexpr bool refers() {
  if constexpr (Tensor<T>) {
    return false;
  } else if constexpr (Struct<T>) {
    using Tie = decltype(members(std::declval<T&>()));
    return element_refers<false, Tie>(std::make_index_sequence<std::tuple_size_v<Tie>>());
  } else if constexpr (Tuple<T>) {
    return element_refers<true, T>(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (Map<T>) {
    return refers<typename T::mapped_type>();
  } else if constexpr (Sequence<T> || IsOptional<T>::value) {
    return refers<typename T::value_type>();
  } else {
    return false;
  }
}

/// True if a T contains references, so that a copy of it does not copy its tensors.
template <typename T>
inline constexpr bool holds_references = refers<std::remove_cvref_t<T>>();

/// The values of a map in the order of its keys, which is the same on every rank, unlike the order of a hash map.
template <typename T>
auto values_by_key(T& map) {
  std::vector<typename T::value_type*> entries;
  for (auto& entry : map) entries.push_back(&entry);
  if constexpr (!OrderedMap<T>) std::ranges::sort(entries, {}, [](const auto* entry) { return entry->first; });
  return entries;
}

}  // namespace detail

/// True if a T may contain a tensor.
template <typename T>
inline constexpr bool holds_tensors = detail::Holds<true, std::remove_cvref_t<T>>::value;
/// True if every leaf of a T is a tensor, as collectives require.
template <typename T>
inline constexpr bool only_tensors = detail::Holds<false, std::remove_cvref_t<T>>::value;

/// Calls fn(at::Tensor&) for every defined tensor: members in order, maps by key. Other leaves are skipped.
template <typename T, typename Fn>
void walk(T& value, Fn&& fn) {
  if constexpr (!holds_tensors<T>) {
    return;
  } else if constexpr (detail::Tensor<T>) {
    if (value.defined()) fn(value);
  } else if constexpr (detail::Struct<T>) {
    std::apply([&](auto&... member) { (walk(member, fn), ...); }, detail::members(value));
  } else if constexpr (detail::Tuple<T>) {
    std::apply([&](auto&... member) { (walk(member, fn), ...); }, value);
  } else if constexpr (detail::OrderedMap<T>) {
    for (auto& [key, member] : value) walk(member, fn);
  } else if constexpr (detail::Map<T>) {
    for (auto* entry : detail::values_by_key(value)) walk(entry->second, fn);
  } else if constexpr (detail::Sequence<T>) {
    for (auto& member : value) walk(member, fn);
  } else {
    if (value) walk(*value, fn);
  }
}

}  // namespace accelerate::tree

// SPDX-License-Identifier: Apache-2.0
// Detects members of structs that tree_members() does not list: their number, and whether one contains a tensor. Works
// at compile time. The members of aggregates (structs without constructors, private members and virtual functions) are
// counted; of any other class the size is compared with that of the listed members.
#pragma once

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "accelerate/tree/walk.hpp"

namespace accelerate::tree {

namespace detail {

/// Initializes any member of an Aggregate, in unevaluated operands only. A base class is initialized member by member.
template <typename Aggregate>
struct AnyMember {
  template <typename T>
  requires(!std::is_base_of_v<T, Aggregate>) operator T()
      const noexcept;  // NOLINT(google-explicit-constructor): the conversion is the purpose
};

template <typename T, template <typename> typename Member, size_t... I>
constexpr bool initializes(std::index_sequence<I...>) {
  return requires { T{((void)I, std::declval<Member<T>>())...}; };
}

/// True if T{...} accepts this number of members.
template <typename T, size_t count>
inline constexpr bool has_members = initializes<T, AnyMember>(std::make_index_sequence<count>());

template <typename T>
constexpr bool names_all();

template <typename T, size_t... I>
constexpr bool elements_name_all(std::index_sequence<I...>) {
  return (names_all<std::remove_cvref_t<std::tuple_element_t<I, T>>>() && ...);
}

template <typename Tie, size_t... I>
constexpr bool ties_an_array(std::index_sequence<I...>) {
  return (std::is_array_v<std::remove_cvref_t<std::tuple_element_t<I, Tie>>> || ...);
}

/// True if a T is larger than the elements of Tie, in any order and with any padding, and the pointer that virtual
/// functions need.
template <typename T, typename Tie, size_t... I>
constexpr bool is_larger_than_members(std::index_sequence<I...>) {
  constexpr size_t table = std::is_polymorphic_v<T> ? sizeof(void*) : 0;
  constexpr auto padded = [](size_t size) { return (size + alignof(T) - 1) / alignof(T) * alignof(T); };
  constexpr size_t most = (padded(table) + ... + padded(sizeof(std::tuple_element_t<I, Tie>)));
  return sizeof(T) > std::max(most, alignof(T));
}

template <typename T>
constexpr bool names_all() {
  if constexpr (Tensor<T>) {
    return true;
  } else if constexpr (Struct<T>) {
    using Tie = decltype(members(std::declval<T&>()));
    constexpr auto places = std::make_index_sequence<std::tuple_size_v<Tie>>();
    if constexpr (std::is_aggregate_v<T> && !ties_an_array<Tie>(places)) {
      if constexpr (has_members<T, std::tuple_size_v<Tie> + 1>) return false;
    } else if constexpr (is_larger_than_members<T, Tie>(places)) {
      return false;
    }
    return elements_name_all<Tie>(places);
  } else if constexpr (Tuple<T>) {
    return elements_name_all<T>(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (Map<T>) {
    return names_all<typename T::mapped_type>();
  } else if constexpr (Sequence<T> || IsOptional<T>::value) {
    return names_all<std::remove_cv_t<typename T::value_type>>();
  } else {
    return true;
  }
}

template <typename T, typename... Outer>
constexpr bool leads_to_tensors();

/// Like AnyMember, but refuses a member with a tensor. The conversion is deleted rather than absent, because an absent
/// one would make the compiler initialize the members of that member instead.
template <typename... Outer>
struct TensorFree {
  template <typename Aggregate>
  struct Member {
    template <typename T>
    requires(!std::is_base_of_v<T, Aggregate> && !leads_to_tensors<T, Outer...>()) operator T()
        const noexcept;  // NOLINT(google-explicit-constructor)
    template <typename T>
    requires(!std::is_base_of_v<T, Aggregate> && leads_to_tensors<T, Outer...>()) operator T() const =
        delete;  // NOLINT(google-explicit-constructor)
  };
};

template <typename T, size_t most>
constexpr size_t member_count() {
  if constexpr (most == 0) {
    return 0;
  } else if constexpr (has_members<T, most>) {
    return most;
  } else {
    return member_count<T, most - 1>();
  }
}

template <typename T, typename... Outer, size_t... I>
constexpr bool any_element_leads(std::index_sequence<I...>) {
  return (leads_to_tensors<std::remove_cvref_t<std::tuple_element_t<I, T>>, Outer...>() || ...);
}

/// The alternatives of a variant as a tuple; void for any other type.
template <typename T>
struct Alternatives {
  using type = void;
};
template <typename... Ts>
struct Alternatives<std::variant<Ts...>> {
  using type = std::tuple<Ts...>;
};

/// \tparam Outer  The enclosing types, to end the recursion for a struct that contains itself.
template <typename T, typename... Outer>
constexpr bool leads_to_tensors() {
  if constexpr ((std::is_same_v<T, Outer> || ...)) {
    return false;
  } else if constexpr (Tensor<T>) {
    return true;
  } else if constexpr (Struct<T>) {
    using Tie = decltype(members(std::declval<T&>()));
    return any_element_leads<Tie, T, Outer...>(std::make_index_sequence<std::tuple_size_v<Tie>>());
  } else if constexpr (Tuple<T>) {
    return any_element_leads<T, T, Outer...>(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (Map<T>) {
    return leads_to_tensors<typename T::mapped_type, T, Outer...>();
  } else if constexpr (Sequence<T> || IsOptional<T>::value) {
    return leads_to_tensors<std::remove_cv_t<typename T::value_type>, T, Outer...>();
  } else if constexpr (!std::is_void_v<typename Alternatives<T>::type>) {
    return leads_to_tensors<typename Alternatives<T>::type, T, Outer...>();
  } else if constexpr (std::is_aggregate_v<T> && std::is_class_v<T> && !std::is_trivially_copyable_v<T>) {
    constexpr size_t count = member_count<T, 24>();
    return !initializes<T, TensorFree<T, Outer...>::template Member>(std::make_index_sequence<count>());
  } else {
    return false;
  }
}

template <typename T>
constexpr bool hides();

template <typename T, size_t... I>
constexpr bool any_element_hides(std::index_sequence<I...>) {
  return (hides<std::remove_cvref_t<std::tuple_element_t<I, T>>>() || ...);
}

template <typename T>
constexpr bool hides() {
  if constexpr (Tensor<T>) {
    return false;
  } else if constexpr (Struct<T>) {
    using Tie = decltype(members(std::declval<T&>()));
    return any_element_hides<Tie>(std::make_index_sequence<std::tuple_size_v<Tie>>());
  } else if constexpr (Tuple<T>) {
    return any_element_hides<T>(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (Map<T>) {
    return hides<typename T::mapped_type>();
  } else if constexpr (Sequence<T> || IsOptional<T>::value) {
    return hides<std::remove_cv_t<typename T::value_type>>();
  } else {
    return leads_to_tensors<T>();
  }
}

}  // namespace detail

/// False if a struct in a T has members that its tree_members() does not list. In a class that is not an aggregate, a
/// member that may fit into the padding of the listed members is not detected.
template <typename T>
inline constexpr bool names_all_members = detail::names_all<std::remove_cvref_t<T>>();

/// True if a T has tensors that walk() does not reach: in a struct without tree_members() or in a variant. False also
/// for a class with members that cannot be counted, and for tensors behind a pointer.
template <typename T>
inline constexpr bool hides_tensors = detail::hides<std::remove_cvref_t<T>>();

}  // namespace accelerate::tree

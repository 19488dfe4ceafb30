// SPDX-License-Identifier: Apache-2.0
// Serialises a value to one tensor of bytes, for another process of the same program: tensors, numbers, enums, strings,
// and containers and structs of them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/tree/walk.hpp"

namespace accelerate::tree {

namespace detail {

template <typename T>
concept Plain = std::is_arithmetic_v<T> || std::is_enum_v<T>;

template <typename T>
constexpr bool packs();

template <typename T, size_t... I>
constexpr bool elements_pack(std::index_sequence<I...>) {
  return (packs<std::remove_cvref_t<std::tuple_element_t<I, T>>>() && ...);
}

template <typename T>
constexpr bool packs() {
  if constexpr (Tensor<T>) {
    return std::is_same_v<T, at::Tensor>;
  } else if constexpr (Plain<T> || std::is_same_v<T, std::string>) {
    return true;
  } else if constexpr (Struct<T>) {
    using Tie = decltype(members(std::declval<T&>()));
    return elements_pack<Tie>(std::make_index_sequence<std::tuple_size_v<Tie>>());
  } else if constexpr (Map<T>) {
    return packs<std::remove_cv_t<typename T::key_type>>() && packs<typename T::mapped_type>();
  } else if constexpr (std::ranges::range<T> && requires(T list) { list.emplace_back(); }) {
    return packs<typename T::value_type>();
  } else if constexpr (IsOptional<T>::value) {
    return packs<typename T::value_type>();
  } else if constexpr (Tuple<T>) {
    return elements_pack<T>(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (std::ranges::range<T> && requires { std::tuple_size<T>::value; }) {  // std::array
    return packs<typename T::value_type>();
  } else {
    return false;
  }
}

/// Writes a header, then the data of the tensors.
class Packer {
 public:
  void bytes(const void* data, size_t size) { head_.append(static_cast<const char*>(data), size); }
  void count(size_t number) {
    const auto wide = static_cast<int64_t>(number);
    bytes(&wide, sizeof wide);
  }
  /// \throws Error (usage) for a tensor without plain bytes (sparse, quantized).
  void tensor(const at::Tensor& tensor);
  /// \returns [n] uint8
  [[nodiscard]] at::Tensor finish() const;

 private:
  std::string head_;
  std::vector<at::Tensor> tensors_;
};

class Unpacker {
 public:
  /// \param packed  [n] uint8 on the CPU; unpacked tensors are views of its memory.
  explicit Unpacker(at::Tensor packed);
  void bytes(void* to, size_t size);
  [[nodiscard]] size_t count();
  [[nodiscard]] at::Tensor tensor();

 private:
  at::Tensor packed_;
  int64_t at_;
  int64_t head_end_;
  int64_t data_at_;
};

template <typename T>
void pack_into(Packer& packer, T& value) {
  const auto all = [&](auto&... parts) { (pack_into(packer, parts), ...); };
  if constexpr (Tensor<T>) {
    packer.tensor(value);
  } else if constexpr (Plain<T>) {
    packer.bytes(&value, sizeof value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    packer.count(value.size());
    packer.bytes(value.data(), value.size());
  } else if constexpr (Struct<T>) {
    std::apply(all, members(value));
  } else if constexpr (Map<T>) {
    packer.count(value.size());
    for (auto& [key, member] : value) {
      auto name = key;
      all(name, member);
    }
  } else if constexpr (IsOptional<T>::value) {
    packer.count(value ? 1 : 0);
    if (value) pack_into(packer, *value);
  } else if constexpr (Tuple<T>) {
    std::apply(all, value);
  } else {
    packer.count(static_cast<size_t>(std::ranges::distance(value)));
    for (auto&& item : value) {
      typename T::value_type one = item;  // a copy, because the items of a std::vector<bool> are proxies
      pack_into(packer, one);
    }
  }
}

template <typename T>
void unpack_from(Unpacker& unpacker, T& value) {
  const auto all = [&](auto&... parts) { (unpack_from(unpacker, parts), ...); };
  if constexpr (Tensor<T>) {
    value = unpacker.tensor();
  } else if constexpr (Plain<T>) {
    unpacker.bytes(&value, sizeof value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    value.resize(unpacker.count());
    unpacker.bytes(value.data(), value.size());
  } else if constexpr (Struct<T>) {
    std::apply(all, members(value));
  } else if constexpr (Map<T>) {
    value.clear();
    for (size_t left = unpacker.count(); left > 0; --left) {
      std::remove_cv_t<typename T::key_type> key{};
      typename T::mapped_type member{};
      all(key, member);
      value.emplace(std::move(key), std::move(member));
    }
  } else if constexpr (IsOptional<T>::value) {
    value.reset();
    if (unpacker.count() == 1) unpack_from(unpacker, value.emplace());
  } else if constexpr (Tuple<T>) {
    std::apply(all, value);
  } else if constexpr (requires { value.emplace_back(); }) {
    value.clear();
    for (size_t left = unpacker.count(); left > 0; --left) {
      typename T::value_type one{};
      unpack_from(unpacker, one);
      value.push_back(std::move(one));
    }
  } else {
    (void)unpacker.count();
    for (auto& item : value) unpack_from(unpacker, item);
  }
}

}  // namespace detail

/// True if a T can be packed: all parts are of the kinds above, and it is default-constructible.
template <typename T>
inline constexpr bool packable = detail::packs<std::remove_cvref_t<T>>() && std::is_default_constructible_v<T>;

/// \returns [n] uint8 on the CPU. \throws Error (usage) for sparse and quantized tensors.
template <typename T>
[[nodiscard]] at::Tensor pack(const T& value) requires packable<T> {
  detail::Packer packer;
  detail::pack_into(packer, const_cast<T&>(value));  // the customization point takes T&, but nothing is modified
  return packer.finish();
}

/// \param packed  Result of pack<T>() of the same program. Unpacked tensors are views of its memory, on the CPU.
/// \throws Error (data) if it is too short.
template <typename T>
[[nodiscard]] T unpack(const at::Tensor& packed) requires packable<T> {
  T value{};
  detail::Unpacker unpacker(packed);
  detail::unpack_from(unpacker, value);
  return value;
}

}  // namespace accelerate::tree

// SPDX-License-Identifier: Apache-2.0
// Rows of batches: how many one has, and a batch made of rows of others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "accelerate/tree/split.hpp"
#include "accelerate/tree/tree.hpp"

namespace accelerate::tree {

namespace detail {

/// A list of samples rather than of columns: its items are structs, or pairs and tuples of nothing but tensors.
template <typename T>
constexpr bool is_list_of_samples() {
  if constexpr (Items<T>) {
    using Item = typename T::value_type;
    return holds_tensors<Item> && (Struct<Item> || (Tuple<Item> && only_tensors<Item>));
  } else {
    return false;
  }
}
template <typename T>
concept Samples = is_list_of_samples<T>();

}  // namespace detail

/// Rows of a batch: of a list of samples its length, else the first dimension of the first tensor that has one; none:
/// nothing in value has rows.
template <typename T>
[[nodiscard]] std::optional<int64_t> rows(const T& value) {
  if constexpr (detail::Samples<T>) {
    return static_cast<int64_t>(value.size());
  } else if constexpr (holds_tensors<T>) {
    return tree::batch_size(value);
  } else {
    return std::nullopt;
  }
}

/// Rows first .. first+count-1 of a batch.
template <typename T>
struct RowPiece {
  const T* of;
  int64_t first;
  int64_t count;
};

namespace detail {

/// False: the pieces do not go together.
bool join_tensors(at::Tensor& out, int64_t rows, const std::vector<RowPiece<at::Tensor>>& pieces);

template <typename T>
bool join(T& out, int64_t rows, const std::vector<RowPiece<T>>& pieces);

/// part   the same part of every piece; null where one lacks it
template <typename Part, typename T, typename PartOf>
bool join_part(Part& out, int64_t rows, const std::vector<RowPiece<T>>& pieces, PartOf&& part_of) {
  std::vector<RowPiece<Part>> parts;
  for (const auto& piece : pieces) {
    // One customization point, which takes T&; nothing is changed all the same.
    const Part* part = part_of(const_cast<T&>(*piece.of));
    if (part == nullptr) return false;
    parts.push_back({part, piece.first, piece.count});
  }
  return detail::join(out, rows, parts);
}

template <typename T, size_t... I>
bool join_members(T& out, int64_t rows, const std::vector<RowPiece<T>>& pieces, std::index_sequence<I...>) {
  if constexpr (Struct<T>) {
    auto into = members(out);
    return (join_part(std::get<I>(into), rows, pieces, [](T& from) { return &std::get<I>(members(from)); }) && ...);
  } else {
    return (join_part(std::get<I>(out), rows, pieces, [](T& from) { return &std::get<I>(from); }) && ...);
  }
}

template <typename T>
bool join_items(T& out, int64_t rows, const std::vector<RowPiece<T>>& pieces) {
  if (static_cast<int64_t>(out.size()) != rows) return true;  // not one per row: stays
  T joined;
  for (const auto& piece : pieces) {
    if (static_cast<int64_t>(piece.of->size()) < piece.first + piece.count) return false;
    for (int64_t i = 0; i < piece.count; ++i) joined.push_back(*std::next(piece.of->begin(), piece.first + i));
  }
  out = std::move(joined);
  return true;
}

template <typename T>
bool join(T& out, int64_t rows, const std::vector<RowPiece<T>>& pieces) {
  if constexpr (Tensor<T>) {
    std::vector<RowPiece<at::Tensor>> tensors;
    for (const auto& piece : pieces) tensors.push_back({piece.of, piece.first, piece.count});
    return join_tensors(out, rows, tensors);
  } else if constexpr (Struct<T>) {
    using Members = decltype(members(out));
    return join_members(out, rows, pieces, std::make_index_sequence<std::tuple_size_v<Members>>());
  } else if constexpr (Tuple<T>) {
    return join_members(out, rows, pieces, std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (Map<T>) {
    for (auto& [key, member] : out) {
      const auto same_key = [&key = key](T& from) {
        const auto found = from.find(key);
        return found == from.end() ? nullptr : &found->second;
      };
      if (!join_part(member, rows, pieces, same_key)) return false;
    }
    return true;
  } else if constexpr (Samples<T> || (Items<T> && !holds_tensors<T>)) {
    return join_items(out, rows, pieces);
  } else if constexpr (Sequence<T> && holds_tensors<T>) {
    size_t i = 0;
    for (auto& member : out) {
      const auto same_place = [i](T& from) {
        return i < from.size() ? &*std::next(from.begin(), static_cast<std::ptrdiff_t>(i)) : nullptr;
      };
      if (!join_part(member, rows, pieces, same_place)) return false;
      ++i;
    }
    return true;
  } else if constexpr (IsOptional<T>::value) {
    return !out || join_part(*out, rows, pieces, [](T& from) { return from ? &*from : nullptr; });
  } else {
    return true;
  }
}

}  // namespace detail

/// A batch of rows of others, piece after piece.
///
/// like      a batch of rows(like) rows; its tensors with so many rows, and its lists of so many items, become the
///           pieces' rows joined, copied; what has no rows, or another number, stays like's
/// pieces    of batches built as `like`
/// returns   none where they are not: other keys, lengths, dtypes, or shapes beyond the first dimension
template <typename T>
[[nodiscard]] std::optional<T> join_rows(const T& like, const std::vector<RowPiece<T>>& pieces) {
  const auto rows = tree::rows(like);
  std::optional<T> joined = like;
  if (!rows || !detail::join(*joined, *rows, pieces)) return std::nullopt;
  return joined;
}

}  // namespace accelerate::tree

// SPDX-License-Identifier: Apache-2.0
// Counts, selects and joins the rows of batches.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "accelerate/tree/join.hpp"
#include "accelerate/tree/members.hpp"
#include "accelerate/tree/split.hpp"
#include "accelerate/tree/tree.hpp"

namespace accelerate::tree {

namespace detail {

/// True for a list of samples, as opposed to a list of columns: its items are structs, or pairs and tuples of tensors
/// only. Only a whole batch can be a list of samples. Inside a batch such a list has columns, for example views.
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

/// Number of rows of a batch: the length of a list of samples, otherwise the first dimension of the first tensor that
/// has one. If no tensor in value has a dimension, the result is unset.
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

/// Rows first to first+count-1 of a batch.
template <typename T>
struct RowPiece {
  const T* of;
  int64_t first;
  int64_t count;
};

/// Joins rows of several batches, piece after piece, into a new batch.
///
/// A part with one row, or one item, per row of its batch is joined and copied: tensors along their first dimension,
/// and lists without tensors by their items. A list with tensors inside a batch is a list of columns, and each of its
/// tensors is joined. Only a whole batch can be a list of samples. A part without rows (a number, a string, a tensor or
/// list of another size) is taken from the first piece's batch.
///
/// \param like    A batch with the structure of the pieces' batches. If all batches have the same number of rows, a
///                part that has this size by chance is joined; a batch with fewer rows avoids the ambiguity.
/// \returns       Unset if the pieces cannot be joined: different keys, lengths or dtypes, shapes that differ beyond
///                the first dimension, sizes that differ and are not the rows, an ambiguous list, or a struct with a
///                member that tree_members() does not list.
template <typename T>
[[nodiscard]] std::optional<T> join_rows(const T& like, const std::vector<RowPiece<T>>& pieces) {
  const auto rows = tree::rows(like);
  if (!rows || pieces.empty() || !names_all_members<T>) return std::nullopt;
  std::vector<detail::PartPiece<T>> parts;
  for (const auto& piece : pieces) {
    const int64_t has = tree::rows(*piece.of).value_or(0);
    if (piece.first + piece.count > has) return std::nullopt;
    parts.push_back({piece.of, has, piece.first, piece.count});
  }
  std::optional<T> out = like;
  detail::Joined joined{*rows};
  if constexpr (detail::Samples<T>) {
    detail::join_items(*out, joined, parts);
  } else {
    if (!detail::join(*out, joined, parts)) return std::nullopt;
  }
  return out;
}

}  // namespace accelerate::tree

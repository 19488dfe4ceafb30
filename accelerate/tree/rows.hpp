// SPDX-License-Identifier: Apache-2.0
// Rows of batches: how many one has, and a batch made of rows of others.
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

/// A list of samples rather than of columns: its items are structs, or pairs and tuples of nothing but tensors. Only a
/// whole batch can be one. Inside a batch such a list holds columns, for example the views of its samples.
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

/// Rows of a batch: of a list of samples its length, else the first dimension of the first tensor that has one. If no
/// tensor in value has a dimension, the result is unset.
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

/// A batch of rows of others, piece after piece.
///
/// A part that has one row, or one item, for each row of its batch becomes the pieces' rows joined, copied: tensors by
/// their first dimension, and lists without tensors by their items. A list with tensors inside a batch is a list of
/// columns, and each of its tensors is joined. Only a whole batch can be a list of samples. A part without rows (a
/// number, a string, a tensor or list of another size) is taken from the first piece's batch.
///
/// \param like    A batch with the structure of the pieces' batches. If all batches have equally many rows, a part of
///                that size by chance is taken for one with rows; a shorter batch avoids the mistake.
/// \returns       Unset if the pieces do not go together: other keys, lengths or dtypes, shapes that differ beyond the
///                first dimension, sizes that differ but are not the rows, a list that can be read both ways, or a
///                struct with a member that tree_members() does not name.
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

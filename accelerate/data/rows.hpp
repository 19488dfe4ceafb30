// SPDX-License-Identifier: Apache-2.0
// Reads and writes rows of trees by number.
//
// Tensors [n, ...] have rows, and so do lists of n items without tensors. A whole tree may be a list of n samples
// (structs, pairs and tuples). Inside a tree such a list has columns. Numbers, strings and 0-dim tensors are common to
// all rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "accelerate/data/batch_buffer_pool.hpp"
#include "accelerate/data/leaf_path.hpp"
#include "accelerate/data/source.hpp"
#include "accelerate/tree/rows.hpp"

namespace accelerate::data::detail {

template <typename T>
concept RowList = tree::detail::Samples<T> || tree::detail::ItemPerRow<T>;

template <typename T, typename Fn>
bool walk_parts(T& value, T& other, const LeafPath& path, Fn&& fn);

template <typename Members, typename Fn, size_t... I>
bool walk_members(Members& mine, Members& others, const LeafPath& path, Fn&& fn, std::index_sequence<I...>) {
  return (walk_parts(std::get<I>(mine), std::get<I>(others), path.member(I), fn) && ...);
}

template <typename T, typename Fn>
bool walk_entries(T& value, T& other, const LeafPath& path, Fn&& fn) {
  if (value.size() != other.size()) return false;
  size_t place = 0;
  for (auto& [key, mine] : value) {
    const auto found = other.find(key);
    if (found == other.end() || !walk_parts(mine, found->second, path.entry(key, place++), fn)) return false;
  }
  return true;
}

template <typename T, typename Fn>
bool walk_items(T& value, T& other, const LeafPath& path, Fn&& fn) {
  if (value.size() != other.size()) return false;
  auto others = other.begin();
  size_t place = 0;
  for (auto& mine : value) {
    if (!walk_parts(mine, *others++, path.member(place++), fn)) return false;
  }
  return true;
}

/// walk_rows() inside a tree.
template <typename T, typename Fn>
bool walk_parts(T& value, T& other, const LeafPath& path, Fn&& fn) {
  if constexpr (std::same_as<T, at::Tensor> || tree::detail::ItemPerRow<T>) {
    fn(path, value, other);
    return true;
  } else if constexpr (tree::detail::Struct<T>) {
    auto mine = tree::detail::members(value);
    auto others = tree::detail::members(other);
    return walk_members(mine, others, path, fn, std::make_index_sequence<std::tuple_size_v<decltype(mine)>>());
  } else if constexpr (tree::detail::Tuple<T>) {
    return walk_members(value, other, path, fn, std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (tree::detail::Map<T>) {
    return walk_entries(value, other, path, fn);
  } else if constexpr (tree::detail::Sequence<T> && tree::holds_tensors<T>) {
    return walk_items(value, other, path, fn);
  } else if constexpr (tree::detail::IsOptional<T>::value) {
    return value.has_value() == other.has_value() && (!value || walk_parts(*value, *other, path, fn));
  } else {
    return true;
  }
}

/// Calls fn(path, leaf, the same leaf of other) for tensors and lists that may have rows. Returns false if the
/// structures differ: a key, an item or a value is missing in one of them.
template <typename T, typename Fn>
bool walk_rows(T& value, T& other, const LeafPath& path, Fn&& fn) {
  if constexpr (tree::detail::Samples<T>) {
    fn(path, value, other);
    return true;
  } else {
    return walk_parts(value, other, path, fn);
  }
}

/// The same for a single tree.
template <typename T, typename Fn>
void walk_rows(T& value, Fn&& fn) {
  (void)walk_rows(value, value, LeafPath{}, [&](const LeafPath& path, auto& leaf, auto&) { fn(path, leaf); });
}

/// Rows to read, and the memory for the result.
struct RowChoice {
  const at::Tensor& numbers;  // [B] int64 on the CPU, contiguous, of existing rows
  BatchBufferPool& memory;
  bool pinned = false;
  at::Tensor there{};  // the indices on the accelerator that has the tensors
};

/// \returns a copy of the rows with these numbers.
at::Tensor select(const at::Tensor& tensor, const RowChoice& rows);
template <RowList List>
List select(const List& list, const RowChoice& rows) {
  List selected;
  const auto* const numbers = rows.numbers.template const_data_ptr<int64_t>();
  for (int64_t i = 0; i < rows.numbers.size(0); ++i) selected.push_back(*std::next(list.begin(), numbers[i]));
  return selected;
}

/// \returns uninitialised memory for this number of equal rows.
at::Tensor empty_rows(const at::Tensor& tensor, int64_t rows);
template <RowList List>
List empty_rows(const List& list, int64_t rows) {
  List many;
  for (int64_t i = 0; i < rows; ++i) many.push_back(list.front());
  return many;
}

/// Writes rows to the places. Returns false if shape or dtype differ.
bool put_rows(at::Tensor& into, const at::Tensor& rows, const at::Tensor& places);
template <RowList List>
bool put_rows(List& into, const List& rows, const at::Tensor& places) {
  const auto* to = places.const_data_ptr<int64_t>();
  for (const auto& row : rows) *std::next(into.begin(), *to++) = row;
  return true;
}

/// True if all numbers are equal; NaN equals NaN.
bool are_equal(const at::Tensor& one, const at::Tensor& other);

/// True for items with a usable ==; std::vector declares it for any item type.
template <typename T>
constexpr bool may_be_compared() {
  if constexpr (tree::detail::Items<T>) {
    return may_be_compared<typename T::value_type>();
  } else {
    return std::is_arithmetic_v<T> || std::is_enum_v<T> || std::same_as<T, std::string>;
  }
}

template <typename T>
bool are_equal_items(const T& one, const T& other) {
  if constexpr (tree::detail::Items<T>) {
    return std::equal(one.begin(), one.end(), other.begin(), other.end(),
                      [](const auto& a, const auto& b) { return are_equal_items(a, b); });
  } else {
    return one == other || (one != one && other != other);
  }
}

template <RowList List>
bool are_equal(const List& one, const List& other) {
  if constexpr (may_be_compared<List>()) {
    return are_equal_items(one, other);
  } else {
    return one.size() == other.size();  // items of an unknown type cannot be compared
  }
}

/// Rows of a leaf; -1 if it has none.
template <typename Leaf>
int64_t rows_of(const Leaf& leaf) {
  if constexpr (std::same_as<Leaf, at::Tensor>) {
    return leaf.defined() && leaf.dim() > 0 ? leaf.size(0) : -1;
  } else {
    return static_cast<int64_t>(leaf.size());
  }
}

/// A tree of N rows that is read and written by row.
template <typename T>
class RowTable {
 public:
  /// Parts of the tree with `rows` rows are per row; other parts are common to all rows.
  RowTable(T tree, int64_t rows) : tree_(std::move(tree)), empty_(tree_), rows_(rows) {
    walk_rows(empty_, [&](const LeafPath&, auto& leaf) {
      if (rows_of(leaf) == rows_) leaf = std::remove_cvref_t<decltype(leaf)>();
    });
  }

  /// Allocates `rows` rows like those of a batch, which must have at least one.
  [[nodiscard]] static RowTable with_room(T batch, int64_t rows_of_batch, int64_t rows) {
    walk_rows(batch, [&](const LeafPath&, auto& leaf) {
      if (rows_of(leaf) == rows_of_batch) leaf = detail::empty_rows(leaf, rows);
    });
    return {std::move(batch), rows};
  }

  /// \param indices  [B] int64 on the CPU, contiguous, of existing rows.
  /// \param context  Determines whether pinned memory is used.
  /// \param there    The indices on the accelerator that has the tensors.
  [[nodiscard]] T read(const at::Tensor& indices, const ReadContext& context = {}, const at::Tensor& there = {}) const {
    const RowChoice rows{indices, *memory_, context.pinned, there};
    T batch = empty_;
    // The customization point takes T&, but nothing is modified.
    (void)walk_rows(batch, const_cast<T&>(tree_), LeafPath{}, [&](const LeafPath&, auto& out, auto& leaf) {
      if (rows_of(leaf) == rows_) out = detail::select(leaf, rows);
    });
    return batch;
  }

  /// \param places  [B] int64, destination rows of the batch.
  /// \param refuse  Called with the path of a mismatch, or with the root path for another structure.
  template <typename Refuse>
  void put(const T& batch, const at::Tensor& places, Refuse&& refuse) {
    const LeafPath whole{};
    const auto write = [&](const LeafPath& path, auto& mine, auto& leaf) {
      const bool fits = rows_of(mine) == rows_ ? rows_of(leaf) == places.size(0) && detail::put_rows(mine, leaf, places)
                                               : detail::are_equal(mine, leaf);  // common to all rows
      if (!fits) refuse(path);
    };
    if (!walk_rows(tree_, const_cast<T&>(batch), whole, write)) refuse(whole);
  }

  [[nodiscard]] const T& tree() const { return tree_; }

 private:
  T tree_;
  T empty_;  // tree_ without the rows
  int64_t rows_;
  std::shared_ptr<BatchBufferPool> memory_ = std::make_shared<BatchBufferPool>();
};

}  // namespace accelerate::data::detail

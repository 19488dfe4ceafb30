// SPDX-License-Identifier: Apache-2.0
// Private to rows.hpp: joins parts of batches row by row.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <ranges>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/tree/split.hpp"
#include "accelerate/tree/walk.hpp"

namespace accelerate::tree::detail {

/// A list that may have one item per row inside a batch.
template <typename T>
concept ItemPerRow = Items<T> && !holds_tensors<T>;

/// Rows first to first+count-1 of one part of a batch.
template <typename T>
struct PartPiece {
  const T* of;
  int64_t rows;  // rows of the batch
  int64_t first;
  int64_t count;
};

/// The sizes of one part, compared over the example batch and the batches of all pieces.
struct Sizes {
  bool one_per_row = true;  // true if the size equals the number of rows in each batch
  bool equal = true;        // true if all batches have the same size
};

struct Joined {
  int64_t rows;       // rows of the example batch
  int64_t parts = 0;  // number of parts that were joined by rows
};

template <typename T, typename SizeOf>
Sizes sizes_of(const T& example, int64_t rows, const std::vector<PartPiece<T>>& pieces, const SizeOf& size_of) {
  const int64_t size = size_of(example);
  Sizes sizes{.one_per_row = size == rows};
  for (const auto& piece : pieces) {
    const int64_t other = size_of(*piece.of);
    sizes.one_per_row = sizes.one_per_row && other == piece.rows;
    sizes.equal = sizes.equal && other == size;
  }
  return sizes;
}

/// \returns false if the pieces do not match.
bool join_tensors(at::Tensor& out, Joined& joined, const std::vector<PartPiece<at::Tensor>>& pieces);

template <typename T>
bool join(T& out, Joined& joined, const std::vector<PartPiece<T>>& pieces);

/// \param part_of  Returns the same part of a piece's batch, or null if it is missing.
template <typename Part, typename T, typename PartOf>
bool join_part(Part& out, Joined& joined, const std::vector<PartPiece<T>>& pieces, PartOf&& part_of) {
  std::vector<PartPiece<Part>> parts;
  for (const auto& piece : pieces) {
    // The customization point takes T&, but nothing is modified.
    const Part* part = part_of(const_cast<T&>(*piece.of));
    if (part == nullptr) return false;
    parts.push_back({part, piece.rows, piece.first, piece.count});
  }
  return detail::join(out, joined, parts);
}

template <typename T, size_t... I>
bool join_members(T& out, Joined& joined, const std::vector<PartPiece<T>>& pieces, std::index_sequence<I...>) {
  if constexpr (Struct<T>) {
    auto into = members(out);
    return (join_part(std::get<I>(into), joined, pieces, [](T& from) { return &std::get<I>(members(from)); }) && ...);
  } else {
    return (join_part(std::get<I>(out), joined, pieces, [](T& from) { return &std::get<I>(from); }) && ...);
  }
}

template <typename T>
bool join_values(T& out, Joined& joined, const std::vector<PartPiece<T>>& pieces) {
  for (auto& [key, member] : out) {
    const auto same_key = [&key = key](T& from) {
      const auto found = from.find(key);
      return found == from.end() ? nullptr : &found->second;
    };
    if (!join_part(member, joined, pieces, same_key)) return false;
  }
  return true;
}

/// Joins lists item by item: items at the same position are the same column. The lists have equal sizes.
template <typename T>
bool join_columns(T& out, Joined& joined, const std::vector<PartPiece<T>>& pieces) {
  size_t place = 0;
  for (auto& column : out) {
    const auto at_same_position = [place](T& from) {
      return &*std::next(from.begin(), static_cast<std::ptrdiff_t>(place));
    };
    if (!join_part(column, joined, pieces, at_same_position)) return false;
    ++place;
  }
  return true;
}

template <typename T>
void join_items(T& out, Joined& joined, const std::vector<PartPiece<T>>& pieces) {
  T items;
  for (const auto& piece : pieces)
    for (int64_t i = 0; i < piece.count; ++i) items.push_back(*std::next(piece.of->begin(), piece.first + i));
  out = std::move(items);
  ++joined.parts;
}

/// A part without rows is taken from the batch of the first row.
template <typename T>
void take_first(T& out, const std::vector<PartPiece<T>>& pieces) {
  if constexpr (std::is_copy_assignable_v<T>) out = *pieces.front().of;
}

/// True if parts of a T may have rows.
template <typename T>
constexpr bool may_have_rows();

template <typename T, size_t... I>
constexpr bool an_element_may(std::index_sequence<I...>) {
  return (may_have_rows<std::remove_cvref_t<std::tuple_element_t<I, T>>>() || ...);
}

template <typename T>
constexpr bool may_have_rows() {
  if constexpr (Tensor<T> || Items<T>) {
    return true;
  } else if constexpr (std::convertible_to<const T&, std::string_view>) {
    return false;
  } else if constexpr (Struct<T>) {
    using Members = decltype(members(std::declval<T&>()));
    return an_element_may<Members>(std::make_index_sequence<std::tuple_size_v<Members>>());
  } else if constexpr (Tuple<T>) {
    return an_element_may<T>(std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (Map<T>) {
    return may_have_rows<typename T::mapped_type>();
  } else if constexpr (Sequence<T> || IsOptional<T>::value) {
    return may_have_rows<std::remove_cv_t<typename T::value_type>>();
  } else {
    return false;
  }
}

/// True if items can be assigned one by one, unlike those of a set.
template <typename T>
concept HasColumns = requires(T& list) {
  { *list.begin() } -> std::same_as<typename T::value_type&>;
};

/// Joins a list inside a batch. A list with tensors is a list of columns. A list without tensors has one item per row,
/// or its items do. If both readings fit, or neither does, the result is false.
template <typename T>
bool join_list(T& out, Joined& joined, const std::vector<PartPiece<T>>& pieces) {
  const auto sizes = sizes_of(out, joined.rows, pieces,
                              [](const T& list) { return static_cast<int64_t>(std::ranges::distance(list)); });
  const bool items = Items<T> && sizes.one_per_row;
  if (!sizes.equal && !(items && ItemPerRow<T>)) return false;
  if constexpr (may_have_rows<std::remove_cv_t<typename T::value_type>>() && HasColumns<T>) {
    if (sizes.equal) {
      T columns = out;
      Joined inside{joined.rows};
      const bool fit = join_columns(columns, inside, pieces);
      const bool cut = fit && inside.parts > 0;
      if (ItemPerRow<T> ? items && cut : items && !cut) return false;
      if (cut || !items) {
        out = std::move(columns);
        joined.parts += inside.parts;
        return fit;
      }
    }
  }
  if constexpr (ItemPerRow<T>) {
    if (items) {
      join_items(out, joined, pieces);
      return true;
    }
  }
  take_first(out, pieces);
  return true;
}

template <typename T>
bool join(T& out, Joined& joined, const std::vector<PartPiece<T>>& pieces) {
  if constexpr (Tensor<T>) {
    std::vector<PartPiece<at::Tensor>> tensors;
    for (const auto& piece : pieces) tensors.push_back({piece.of, piece.rows, piece.first, piece.count});
    return join_tensors(out, joined, tensors);
  } else if constexpr (std::convertible_to<const T&, std::string_view>) {
    take_first(out, pieces);
    return true;
  } else if constexpr (Struct<T>) {
    using Members = decltype(members(out));
    return join_members(out, joined, pieces, std::make_index_sequence<std::tuple_size_v<Members>>());
  } else if constexpr (Tuple<T>) {
    return join_members(out, joined, pieces, std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (Map<T>) {
    return join_values(out, joined, pieces);
  } else if constexpr (Sequence<T>) {
    return join_list(out, joined, pieces);
  } else if constexpr (IsOptional<T>::value) {
    for (const auto& piece : pieces)
      if (piece.of->has_value() != out.has_value()) return false;
    return !out || join_part(*out, joined, pieces, [](T& from) { return &*from; });
  } else {
    take_first(out, pieces);
    return true;
  }
}

}  // namespace accelerate::tree::detail

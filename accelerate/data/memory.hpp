// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "accelerate/data/derived_source.hpp"
#include "accelerate/data/leaf_path.hpp"
#include "accelerate/data/loader.hpp"
#include "accelerate/data/rows.hpp"

namespace accelerate::data {

/// Samples that lie in memory.
///
/// data     [N, ...] on the CPU, referenced, not copied
/// target   [N, ...] on the CPU; undefined: batches have no target
/// A batch is one index_select per tensor. Throws Error (usage) where the two disagree about N.
[[nodiscard]] std::shared_ptr<const Source> memory_source(at::Tensor data, at::Tensor target = {});

/// A loader over memory_source(data, target).
[[nodiscard]] Loader from_tensors(at::Tensor data, at::Tensor target, const LoaderOptions& options = {});

namespace detail {

/// Counts the rows of a tree's leaves as they are shown.
class RowCount {
 public:
  /// Throws Error (usage) for a leaf without rows, one that is not on the CPU, and one that disagrees about N.
  void add(const LeafPath& path, const at::Tensor& tensor);
  void add(const LeafPath& path, int64_t items);
  /// Throws Error (usage) where nothing had rows.
  [[nodiscard]] int64_t rows() const;

 private:
  int64_t rows_ = -1;
  std::string first_;  // path of the leaf that said so
};

template <typename T>
int64_t count_rows(T& tree) {
  RowCount count;
  walk_rows(tree, [&](const LeafPath& path, auto& leaf) {
    if constexpr (std::same_as<std::remove_cvref_t<decltype(leaf)>, at::Tensor>) {
      if (!leaf.defined()) return;
      count.add(path, leaf);
      leaf = leaf.detach();
    } else {
      count.add(path, rows_of(leaf));
    }
  });
  return count.rows();
}

template <typename T>
class MemoryTree final : public DerivedSource<T> {
 public:
  MemoryTree(T tree, int64_t rows)
      : DerivedSource<T>("memory_source", rows, SourceTraits()), table_(std::move(tree), rows) {}

 private:
  [[nodiscard]] T make(const at::Tensor& indices, const ReadContext&) const override { return table_.read(indices); }

  RowTable<T> table_;
};

template <typename T>
concept MemoryData = tree::holds_tensors<T> && !std::convertible_to<T, at::Tensor>;

}  // namespace detail

/// Samples that lie in memory in the shape of their batches: a pair, tuple, vector, map or struct (with tree_members)
/// of tensors [N, ...] on the CPU, which are referenced, not copied, and of lists of N items that hold no tensors.
/// Batches are built alike; numbers and strings belong to all samples.
/// Throws Error (usage) where two disagree about N.
template <detail::MemoryData T>
[[nodiscard]] SourcePtr<T> memory_source(T tree) {
  const int64_t rows = detail::count_rows(tree);
  return std::make_shared<detail::MemoryTree<T>>(std::move(tree), rows);
}

/// A loader over memory_source(tree).
template <detail::MemoryData T>
[[nodiscard]] LoaderOf<T> from_tensors(T tree, const LoaderOptions& options = {}) {
  return LoaderOf<T>(data::memory_source(std::move(tree)), options);
}

}  // namespace accelerate::data

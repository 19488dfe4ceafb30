// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "accelerate/data/batch.hpp"
#include "accelerate/data/derived_source.hpp"
#include "accelerate/data/leaf_path.hpp"
#include "accelerate/data/loader.hpp"
#include "accelerate/data/rows.hpp"

namespace accelerate::data {

/// Samples in memory. A batch is one copy of its rows per tensor into reused memory; a large one is copied by several
/// threads.
///
/// \param data    [N, ...] on the CPU; referenced, not copied.
/// \param target  [N, ...] on the CPU. If undefined, batches have no target.
/// \throws Error (usage) if both have different N.
[[nodiscard]] std::shared_ptr<const Source> memory_source(at::Tensor data, at::Tensor target = {});

/// As above, but this call copies all data to an accelerator, and batches are gathered there: a step transfers only
/// sample numbers. For data that fits into device memory besides the training; each rank has its own copy. The thread
/// of the loop reads it: num_workers must be 0.
///
/// \param device  An accelerator, such as accelerator.device(). With the CPU, the source is the one above.
/// \throws Error (device) if the data does not fit.
[[nodiscard]] std::shared_ptr<const Source> memory_source(at::Tensor data, at::Tensor target, c10::Device device);

/// The same for a pair: memory_source({data, target}).
[[nodiscard]] std::shared_ptr<const Source> memory_source(Batch batch);
[[nodiscard]] std::shared_ptr<const Source> memory_source(Batch batch, c10::Device device);

/// A loader over memory_source(data, target).
[[nodiscard]] Loader from_tensors(at::Tensor data, at::Tensor target, const LoaderOptions& options = {});
/// The same for a pair, as torch.utils.data.TensorDataset(x, y): from_tensors({x, y}, {.batch_size = 32}). For more
/// than two tensors use a tuple: from_tensors(std::tuple(x, y, z)).
[[nodiscard]] Loader from_tensors(Batch batch, const LoaderOptions& options = {});

namespace detail {

/// Counts the rows of a tree, leaf by leaf.
class CommonRowCount {
 public:
  /// \throws Error (usage) for a leaf without rows, with another N, or not on the CPU.
  void add(const LeafPath& path, const at::Tensor& tensor);
  void add(const LeafPath& path, int64_t items);
  /// \throws Error (usage) if no leaf had rows.
  [[nodiscard]] int64_t rows() const;

 private:
  int64_t rows_ = -1;
  std::string first_;  // path of the leaf that determined N
};

/// Data on an accelerator, shared by all readers of a source.
class Residence {
 public:
  explicit Residence(c10::Device device);
  ~Residence();
  Residence(const Residence&) = delete;
  Residence& operator=(const Residence&) = delete;

  /// \throws Error (device) if the tensor does not fit.
  [[nodiscard]] at::Tensor move_in(const at::Tensor& tensor);
  /// \param indices  [B] int64 on the CPU.
  /// \returns the indices on the device, valid when the current stream reaches them; the host does not wait.
  /// \throws Error (usage) in a loader's worker, because its stream is not the loop's.
  [[nodiscard]] at::Tensor numbers(const at::Tensor& indices);

 private:
  struct Lane;
  c10::Device device_;
  int64_t bytes_ = 0;
  std::unique_ptr<Lane> lane_;
};
/// Null for the CPU.
[[nodiscard]] std::shared_ptr<Residence> residence_on(c10::Device device);

template <typename T>
int64_t count_rows(T& tree) {
  CommonRowCount count;
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
  MemoryTree(T tree, int64_t rows, std::shared_ptr<Residence> residence = nullptr)
      : DerivedSource<T>("memory_source", rows, SourceTraits{.thread_safe = residence == nullptr}),
        residence_(std::move(residence)),
        table_(moved(std::move(tree), residence_.get()), rows) {}

 private:
  static T moved(T tree, Residence* residence) {
    if (residence == nullptr) return tree;
    walk_rows(tree, [&](const LeafPath&, auto& leaf) {
      if constexpr (std::same_as<std::remove_cvref_t<decltype(leaf)>, at::Tensor>) {
        if (leaf.defined()) leaf = residence->move_in(leaf);
      }
    });
    return tree;
  }
  [[nodiscard]] T make(const at::Tensor& indices, const ReadContext& context) const override {
    return table_.read(indices, context, residence_ ? residence_->numbers(indices) : at::Tensor());
  }

  std::shared_ptr<Residence> residence_;  // null if the data is on the CPU
  RowTable<T> table_;
};

template <typename T>
concept MemoryData = tree::holds_tensors<T> && !std::convertible_to<T, at::Tensor>;

}  // namespace detail

/// Samples in memory in the structure of their batches: a pair, tuple, vector, map or struct (with tree_members) of
/// tensors [N, ...] on the CPU, which are referenced, and of lists of N items without tensors. Batches have the same
/// structure. Numbers and strings are common to all samples.
/// \throws Error (usage) if two parts have different N.
template <detail::MemoryData T>
[[nodiscard]] SourcePtr<T> memory_source(T tree) {
  const int64_t rows = detail::count_rows(tree);
  return std::make_shared<detail::MemoryTree<T>>(std::move(tree), rows);
}

/// The same with the tensors copied to an accelerator; see memory_source(data, target, device).
template <detail::MemoryData T>
[[nodiscard]] SourcePtr<T> memory_source(T tree, c10::Device device) {
  const int64_t rows = detail::count_rows(tree);
  return std::make_shared<detail::MemoryTree<T>>(std::move(tree), rows, detail::residence_on(device));
}

/// A loader over memory_source(tree).
template <detail::MemoryData T>
[[nodiscard]] LoaderOf<T> from_tensors(T tree, const LoaderOptions& options = {}) {
  return LoaderOf<T>(data::memory_source(std::move(tree)), options);
}

}  // namespace accelerate::data

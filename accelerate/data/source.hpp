// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>

#include "accelerate/data/batch.hpp"

namespace accelerate::data {

/// The reading pass: inputs of a sample besides its number.
struct ReadContext {
  /// Seed of the loader; rank 0's on all ranks.
  uint64_t seed = 0;
  int64_t epoch = 0;
  /// Distinguishes nested random layers: each layer reads the one below with another number.
  uint64_t layer = 0;
  /// If true, the batch will be copied to an accelerator; sources may read it into pinned memory.
  bool pinned = false;
};

/// Numbered samples that are read in batches. A batch is any type with tensors for accelerate::tree: a Batch, a struct
/// with tree_members, a vector, map or pair. Derive from this class for a new kind of data.
template <typename AnyBatch>
class SourceOf {
 public:
  using BatchType = AnyBatch;

  SourceOf() = default;
  SourceOf(const SourceOf&) = delete;
  SourceOf& operator=(const SourceOf&) = delete;
  virtual ~SourceOf() = default;

  /// N, constant.
  [[nodiscard]] virtual int64_t size() const = 0;

  /// Called concurrently from the loader's workers unless thread_safe() is false; several loaders and sources may share
  /// a source.
  /// \param indices  [B] int64 on the CPU, each 0 to size()-1, repetitions allowed.
  /// \returns those samples in that order, in their own storage, which the caller may modify and keep.
  [[nodiscard]] virtual AnyBatch read(const at::Tensor& indices) const = 0;

  /// Loaders call this function. Override it in sources that depend on the pass, such as random transforms, and in
  /// sources that read other sources. The default calls read().
  [[nodiscard]] virtual AnyBatch read_in_pass(const at::Tensor& indices, const ReadContext& /*context*/) const {
    return read(indices);
  }
  /// If false, only one thread at a time reads it (read_from()), and a loader has at most one worker.
  [[nodiscard]] virtual bool thread_safe() const { return true; }
  /// True if the data depends on the context's seed. All ranks then use rank 0's seed.
  [[nodiscard]] virtual bool seeded() const { return false; }

 private:
  template <typename Read>
  friend Read read_from(const SourceOf<Read>& source, const at::Tensor& indices, const ReadContext& context);

  mutable std::recursive_mutex reading_;  // recursive, because a data set may read itself
};

/// Loaders and derived sources read a source through this function. It serialises reads of a source that is not
/// thread-safe, because a worker of an earlier pass, or of another loader, may still read it.
template <typename AnyBatch>
[[nodiscard]] AnyBatch read_from(const SourceOf<AnyBatch>& source, const at::Tensor& indices,
                                 const ReadContext& context) {
  std::unique_lock alone(source.reading_, std::defer_lock);
  if (!source.thread_safe()) alone.lock();
  return source.read_in_pass(indices, context);
}

/// Source of Batch, a pair of data and target.
using Source = SourceOf<Batch>;

template <typename AnyBatch>
using SourcePtr = std::shared_ptr<const SourceOf<AnyBatch>>;

}  // namespace accelerate::data

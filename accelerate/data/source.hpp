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
  /// The loader's, rank 0's on all ranks.
  uint64_t seed = 0;
  int64_t epoch = 0;
  /// Distinguishes nested random layers: each reads the layer below with its own number.
  uint64_t layer = 0;
  /// If true, the batch will be copied to an accelerator; sources may read it into pinned memory.
  bool pinned = false;
};

/// Numbered samples that are read in batches. A batch is any type with tensors for accelerate::tree: a Batch, a struct
/// with tree_members, a vector, map or pair. A new kind of data is one subclass.
template <typename AnyBatch>
class SourceOf {
 public:
  using BatchType = AnyBatch;

  SourceOf() = default;
  SourceOf(const SourceOf&) = delete;
  SourceOf& operator=(const SourceOf&) = delete;
  virtual ~SourceOf() = default;

  /// N, does not change.
  [[nodiscard]] virtual int64_t size() const = 0;

  /// Called concurrently from the loader's workers unless thread_safe() is false; several loaders and sources may share
  /// a source. \param indices  [B] int64 on the CPU, each 0 to size()-1, repetitions allowed. \returns those samples in
  /// that order, in their own storage, which the caller may modify and keep.
  [[nodiscard]] virtual AnyBatch read(const at::Tensor& indices) const = 0;

  /// The same as a loader calls it. For sources that depend on the pass, as random transforms do, and for those that
  /// read another source, which may; any other is done with read().
  [[nodiscard]] virtual AnyBatch read_in_pass(const at::Tensor& indices, const ReadContext& /*context*/) const {
    return read(indices);
  }
  /// If false, only one thread at a time reads it (read_from()), and a loader has at most one worker.
  [[nodiscard]] virtual bool thread_safe() const { return true; }
  /// What is read depends on the context's seed, which is then rank 0's on all ranks.
  [[nodiscard]] virtual bool seeded() const { return false; }

 private:
  template <typename Read>
  friend Read read_from(const SourceOf<Read>& source, const at::Tensor& indices, const ReadContext& context);

  mutable std::recursive_mutex reading_;  // a data set may walk itself
};

/// How loaders, and sources that are made of others, read one: a worker of a pass that was left may still read it while
/// another pass begins, or another loader's.
template <typename AnyBatch>
[[nodiscard]] AnyBatch read_from(const SourceOf<AnyBatch>& source, const at::Tensor& indices,
                                 const ReadContext& context) {
  std::unique_lock alone(source.reading_, std::defer_lock);
  if (!source.thread_safe()) alone.lock();
  return source.read_in_pass(indices, context);
}

/// Of the convenient pair.
using Source = SourceOf<Batch>;

template <typename AnyBatch>
using SourcePtr = std::shared_ptr<const SourceOf<AnyBatch>>;

}  // namespace accelerate::data

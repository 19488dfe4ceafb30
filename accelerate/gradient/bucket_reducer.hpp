// SPDX-License-Identifier: Apache-2.0
// Averages the gradients of a bucket over the ranks with an all-reduce or a communication hook.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/gradient/named_tensor.hpp"

namespace accelerate::gradient {

/// Gradients of several parameters in one flat tensor.
struct GradientBucket {
  int64_t index = 0;  ///< buckets are reduced in this order, which is the same on all ranks
  bool is_last = false;
  /// [n] of one dtype and device. Before the reduction: this rank's gradients times share, with zeros for missing ones.
  /// Afterwards: the sums over the ranks, which are therefore means. The length is a multiple of 64 bytes times the
  /// ranks; elements outside the views must stay zero.
  at::Tensor gradients{};
  /// Views of gradients with the shape and strides of each parameter.
  std::vector<at::Tensor> views{};
  /// Index of each view's parameter in the model; the same in every run.
  std::vector<int64_t> members{};
  /// [parameters of the model] in the last bucket, otherwise undefined. Must be summed over the ranks too.
  at::Tensor counts{};
  /// Gradients, then counts, contiguous in memory.
  at::Tensor flat{};
  /// The same view of another tensor with the layout of gradients.
  [[nodiscard]] at::Tensor same_storage(const at::Tensor& view, const at::Tensor& other) const;

  /// 1 / ranks. After ranks have run out of batches, the divisor of join_uneven_inputs applies.
  double share = 1.0;
};

/// Named tensors with the state of a reducer; local to this rank.
using ReducerState = std::vector<NamedTensor>;

/// Reduces the buckets of one GradientReducer over its own group. Every rank makes the same calls in the same order:
/// start() for buckets during and after backward, then finish() for all, each in the order of index. Not thread-safe:
/// the GradientReducer calls it one thread at a time.
class BucketReducer {
 public:
  virtual ~BucketReducer() = default;
  /// Starts the reduction without waiting. \param execution  deferred if finish() follows immediately.
  virtual void start(const GradientBucket& bucket, comm::Execution execution) = 0;
  /// Completes with the sums in gradients and counts, with equal bits on every rank. \throws the errors of other ranks.
  virtual void finish(const GradientBucket& bucket) = 0;
  /// Drops the state of buckets, after a new layout or an aborted reduction.
  virtual void forget() = 0;
  /// Bytes of this rank that were passed to collectives so far, without replays. For a ReduceFunction: the size of the
  /// bucket per call.
  [[nodiscard]] virtual int64_t bytes_communicated() const = 0;
  /// State between two reductions. Empty if reductions are independent.
  [[nodiscard]] virtual ReducerState state() const { return {}; }
  /// Restores the state; entries that do not match a parameter are dropped.
  virtual void load_state(const ReducerState&) {}
  /// Called after finish() if no rank used this member of the bucket, so its result is dropped.
  virtual void restore_gradient(const GradientBucket&, size_t /*member*/) {}

  /// Reason why reductions cannot be captured and replayed without calling this object (a graphed step). Empty if the
  /// host makes no decision in them and all state is at fixed addresses.
  [[nodiscard]] virtual std::string not_capturable_reason() const {
    return "the hook's reducer may decide on the host, which replays do not call; override its "
           "not_capturable_reason()";
  }
  /// Changes if memory that a captured reduction uses was released. Such a capture is invalid.
  [[nodiscard]] virtual int64_t memory_version() const { return 0; }
};

/// One all-reduce per bucket.
class AllReduce final : public BucketReducer {
 public:
  explicit AllReduce(comm::Group group) : group_(std::move(group)) {}

  void start(const GradientBucket& bucket, comm::Execution execution) override;
  void finish(const GradientBucket& bucket) override;
  void forget() override { under_way_.clear(); }
  [[nodiscard]] int64_t bytes_communicated() const override { return bytes_communicated_; }
  [[nodiscard]] std::string not_capturable_reason() const override { return {}; }

 private:
  comm::Group group_;
  std::vector<comm::Pending> under_way_;  ///< by index
  int64_t bytes_communicated_ = 0;
};

/// Selects how the buckets of each prepared model are reduced. Two hooks are equal if one is a copy of the other. The
/// default is AllReduce. An immutable value.
class CommHook {
 public:
  using Make = std::function<std::unique_ptr<BucketReducer>(const comm::Group&)>;

  CommHook() = default;
  /// \param make  Called once per model on every rank, with a group for exclusive use by the reducer.
  explicit CommHook(Make make) : make_(std::make_shared<const Make>(std::move(make))) {}

  [[nodiscard]] std::unique_ptr<BucketReducer> reducer(const comm::Group& group) const;
  bool operator==(const CommHook&) const = default;

 private:
  std::shared_ptr<const Make> make_{};
};

}  // namespace accelerate::gradient

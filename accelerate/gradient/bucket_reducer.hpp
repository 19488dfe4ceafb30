// SPDX-License-Identifier: Apache-2.0
// How the gradients of a bucket are averaged over the ranks: by an all-reduce or a communication hook.
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

/// The gradients of some parameters, in one flat tensor.
struct GradientBucket {
  int64_t index = 0;  ///< buckets are reduced in this order, which is the same on all ranks
  bool is_last = false;
  /// [n] of one dtype and device. Before the reduction this rank's gradients, each times share, and zeros where it has
  /// none; after it the sums over the ranks, which therefore are means. A multiple of 64 bytes times the ranks long;
  /// what no view covers is zero and stays so.
  at::Tensor gradients{};
  /// Of each parameter's shape and strides, into gradients.
  std::vector<at::Tensor> views{};
  /// The parameters' places in the model, one for each view: the same in every run.
  std::vector<int64_t> members{};
  /// [parameters of the model] in the last bucket, else undefined: to be summed over the ranks too.
  at::Tensor counts{};
  /// Gradients and counts, one behind the other in memory.
  at::Tensor flat{};
  /// The place of one of the views in another tensor that is laid out as gradients are.
  [[nodiscard]] at::Tensor same_place(const at::Tensor& view, const at::Tensor& other) const;

  /// 1 / ranks; where ranks have run out of batches, as join_uneven_inputs divides.
  double share = 1.0;
};

/// State of a reducer under names of its choice; local to this rank.
using ReducerState = std::vector<NamedTensor>;

/// Reducer of one engine with its own group. Every rank makes the same calls in the same order: start() for buckets
/// during and after backward, then finish() for all, each in the order of index.
class BucketReducer {
 public:
  virtual ~BucketReducer() = default;
  /// Begins; does not wait. execution: deferred where finish follows at once.
  virtual void start(const GradientBucket& bucket, comm::Execution execution) = 0;
  /// Completes with the sums in gradients and counts, with equal bits on every rank. \throws errors of peers.
  virtual void finish(const GradientBucket& bucket) = 0;
  /// The buckets are laid out again, or a reduction was aborted: drops state about them.
  virtual void forget() = 0;
  /// Of this rank's data given to collectives since it was made, replays left out. For a function: as if it had sent
  /// the bucket.
  [[nodiscard]] virtual int64_t bytes_given() const = 0;
  /// Between two reductions. Empty where one is like the other.
  [[nodiscard]] virtual ReducerState state() const { return {}; }
  /// Restores the state; entries that do not match a parameter are dropped.
  virtual void load_state(const ReducerState&) {}
  /// After finish(): no rank used this member of the bucket, so its result is not used.
  virtual void give_back(const GradientBucket&, size_t /*member*/) {}

  /// Reason why reductions cannot be captured and replayed without calling this object (a graphed step). Empty if the
  /// host makes no decision in them and all state is at fixed addresses.
  [[nodiscard]] virtual std::string why_not_recorded() const {
    return "the hook's reducer may decide on the host, which replays do not ask; its why_not_recorded() is for it to "
           "say";
  }
  /// Another one than when a reduction was recorded: that recording counts no more, its memory is gone.
  [[nodiscard]] virtual int64_t memory_version() const { return 0; }
};

/// One all-reduce for each bucket.
class AllReduce final : public BucketReducer {
 public:
  explicit AllReduce(comm::Group group) : group_(std::move(group)) {}

  void start(const GradientBucket& bucket, comm::Execution execution) override;
  void finish(const GradientBucket& bucket) override;
  void forget() override { under_way_.clear(); }
  [[nodiscard]] int64_t bytes_given() const override { return bytes_given_; }
  [[nodiscard]] std::string why_not_recorded() const override { return {}; }

 private:
  comm::Group group_;
  std::vector<comm::Pending> under_way_;  ///< by index
  int64_t bytes_given_ = 0;
};

/// Selects how the buckets of each prepared model are reduced. Two hooks are equal if one is a copy of the other. The
/// default is AllReduce.
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

// SPDX-License-Identifier: Apache-2.0
// Averages gradients over the ranks of a group during backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/gradient/bucket_plan.hpp"
#include "accelerate/gradient/bucket_reducer.hpp"
#include "accelerate/gradient/named_tensor.hpp"
#include "accelerate/state/parameter_shard.hpp"

namespace accelerate::gradient {

struct GradientReducerOptions {
  BucketOptions buckets{};
  /// If true, every backward must use the same parameters on every rank: unused parameters of the first reduction stay
  /// unused. Saves the usage counts; using other parameters is an error.
  bool static_graph = false;
  /// Reduces the buckets.
  CommHook hook{};
  /// If set, determines the buckets, instead of the order of arrival in the first reduction. Its indices count the
  /// parameters that need a gradient, each once; the parameters of a bucket must have one dtype and device. Keys and
  /// bytes are ignored. Sparse gradients become dense. Cannot be combined with static_graph.
  std::optional<BucketPlan> plan{};
  bool operator==(const GradientReducerOptions&) const = default;
};

/// Data-parallel gradients: after a synchronised backward every gradient is the mean over all ranks of the accumulated
/// gradients, with equal bits on all ranks.
///
/// Hooks are attached to the parameters, so any backward that reaches them is reduced. The first reduction records the
/// order in which gradients arrive on rank 0 and which are sparse, and lays out the flat buckets. From the second
/// reduction on, complete buckets are reduced while backward continues.
///
/// Reduced gradients are views of the buckets. A parameter that no rank used since its gradient was zeroed has an
/// undefined gradient; one that some ranks used has the mean on all ranks, with zeros for the others. Sparse gradients
/// stay sparse. User code may drop or replace gradients; a replaced one is local until it is reduced.
///
/// Parameters may move to another dtype or device (module->to()): the next forward(), run_backward(), join or step
/// detects it, existing gradients follow, and the next reduction lays out the buckets again. This must happen on all
/// ranks.
///
/// All ranks construct the reducer, run synchronised backwards and zero gradients in the same order. Errors of peers
/// are thrown from backward as Error (peer). Not thread-safe. Its hooks run on the threads of a backward.
class GradientReducer {
 public:
  struct Core;

  /// Compares names, shapes and dtypes over the ranks, then sets every value to rank 0's. Existing gradients count as
  /// this rank's own, not yet reduced.
  /// \param group       For exclusive use by this reducer: pass Group::duplicate().
  /// \param parameters  Parameters of one model, of any dtypes and devices. Those without a gradient are broadcast and
  ///                    otherwise ignored; duplicates count once.
  /// \throws Error (usage) if another reducer averages one of the parameters, because both would sum the other's
  ///         results.
  GradientReducer(comm::Group group, const std::vector<NamedTensor>& parameters, GradientReducerOptions options = {});
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;
  /// Stops averaging; another reducer may then use the parameters. Afterwards only an UnevenJoin that still refers to
  /// this reducer may call it.
  void retire();

  /// True if the next backward's gradients are reduced; otherwise they stay local until the next synchronised backward.
  /// Initially true. SyncRule defines the decision.
  [[nodiscard]] bool sync() const;
  /// True within an UnevenJoin, where ranks may have no batches left.
  [[nodiscard]] bool joining() const;
  /// Announces a prepared forward. \param sync  False within no_sync or an open accumulation window.
  void forward(bool sync);
  /// Surround a prepared forward. Its own writes to parameters, such as those of an embedding with max_norm, do not
  /// count as a step within a window.
  void forward_begins();
  void forward_ended();
  void open_no_sync();
  void close_no_sync();
  /// Announces a micro-batch of an accumulation window. The next backward throws if a parameter with a local gradient
  /// of the window changed, because an optimizer stepped within the window.
  void open_window(bool sync);
  void close_window();
  /// Sets sync() until the next decision.
  void set_sync(bool sync);

  /// Joins a reduction of the other ranks with this rank's accumulated gradients, or zeros. run_backward() calls it if
  /// this rank's graph did not reach the model.
  void join_backward();

  /// True if a backward reached a parameter since the end of the last reduction.
  [[nodiscard]] bool has_pending_gradients() const;
  /// True if a gradient was never reduced (including assigned ones), or its reduction was aborted.
  [[nodiscard]] bool first_unreduced() const;
  /// Allows steps on local gradients (local SGD).
  void set_local_steps_allowed(bool allowed);
  /// True if every rank runs each step, on equal gradients: neither local SGD nor a join of uneven inputs is active.
  [[nodiscard]] bool steps_in_lockstep() const;
  /// Call before an optimizer step. \throws Error (usage) if first_unreduced() and local steps are not allowed.
  void before_step();

  /// Creates hooks on new gradient accumulators, because autograd runs an accumulator on the stream that was current at
  /// its creation.
  void renew_hooks();
  /// Drops a reduction that never ran on any rank; gradients become undefined.
  void abandon();

  /// Sets all gradients to undefined, as zero_grad() does.
  void zero_all();
  /// The same for some parameters; those of other reducers are ignored. If set_to_none is false, existing gradients
  /// become zeros, on which optimizers step (weight decay applies), with one fill per bucket.
  void zero(const std::vector<at::Tensor>& parameters, bool set_to_none = true);
  [[nodiscard]] bool manages(const at::Tensor& parameter) const;
  /// True if the list has each parameter of this reducer exactly once, and no other parameter with a gradient.
  [[nodiscard]] bool manages_exactly_these(const std::vector<at::Tensor>& parameters) const;

  /// Dense tensors that together contain every gradient: whole buckets, and the values of sparse gradients. Before the
  /// first reduction, the gradients themselves. For clip_norm_of() and clip_value_of(); valid until the next backward.
  [[nodiscard]] std::vector<at::Tensor> gradients();

  /// The parameters with their current gradients for a step of this rank, in the order of the reduction, sparse ones
  /// last. Before the first reduction, in the order of the parameters.
  [[nodiscard]] std::vector<state::ParameterShard> parameter_shards();

  /// Layout of the parameters in buckets; indices count the reduced parameters. Empty before the first reduction,
  /// unless the options provide it.
  [[nodiscard]] const BucketPlan& plan() const;
  [[nodiscard]] const comm::Group& group() const;
  [[nodiscard]] const BucketReducer& reducer() const;
  /// State of the hook that reduces the buckets; call between backwards.
  [[nodiscard]] ReducerState reducer_state() const;
  void load_reducer_state(const ReducerState& state);
  /// Bytes of this rank that were passed to the collectives of its buckets.
  [[nodiscard]] int64_t bytes_communicated() const;

 private:
  friend void run_backward(std::span<GradientReducer* const>, const comm::Group&, const std::function<void()>&);
  friend class UnevenJoin;
  std::shared_ptr<Core> core_;
};

/// Runs a backward, then finishes the reductions of the reducers in the given order, which must be equal on all ranks.
/// If this rank's graph does not reach a model but another rank's graph does, this rank joins with zeros. With several
/// reducers the ranks therefore exchange one integer per reducer over `group`.
///
/// The gradients of reducers with sync() == false stay local.
void run_backward(std::span<GradientReducer* const> gradient_reducers, const comm::Group& group,
                  const std::function<void()>& backward);

}  // namespace accelerate::gradient

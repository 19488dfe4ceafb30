// SPDX-License-Identifier: Apache-2.0
// Averages gradients over the ranks of a group while backward runs.
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
#include "accelerate/state/piece.hpp"

namespace accelerate::gradient {

struct EngineOptions {
  BucketOptions buckets{};
  /// Every backward uses the same parameters on every rank: those that are unused in the first reduction stay unused.
  /// Saves counting; another set of used parameters is then an error.
  bool static_graph = false;
  /// How buckets are reduced.
  CommHook hook{};
  /// Buckets are laid out like that at once, instead of in the order that the first reduction learns. Its indices count
  /// the parameters that need a gradient, each once, those of a bucket of one dtype and device; keys and bytes are not
  /// looked at. Sparse gradients become dense. Not with static_graph, which has to learn.
  std::optional<BucketPlan> plan{};
  bool operator==(const EngineOptions&) const = default;
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
/// ranks alike.
///
/// All ranks construct the engine, run synchronised backwards and zero gradients in the same order. Errors of peers are
/// thrown from backward as Error (peer).
class Engine {
 public:
  struct Core;

  /// Compares names, shapes and dtypes over the ranks, then sets every value to rank 0's. Existing gradients count as
  /// this rank's own, not yet reduced. \param group       For exclusive use by this engine: pass Group::duplicate().
  /// \param parameters  Of one model, of any dtypes and devices. Those without a gradient are broadcast and otherwise
  ///                    ignored; duplicates count once.
  /// \throws Error (usage) if another engine averages one of the parameters, because both would sum the other's
  /// results.
  Engine(comm::Group group, const std::vector<NamedTensor>& parameters, EngineOptions options = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  /// Gradients are averaged no more; another engine may take the parameters over. Nothing else may be called after it
  /// but by an UnevenJoin that still knows this engine.
  void retire();

  /// True if the next backward's gradients are reduced; otherwise they stay local until the next synchronised backward.
  /// Initially true. SyncRule defines the decision.
  [[nodiscard]] bool sync() const;
  /// True within an UnevenJoin, whose ranks may have no batches left.
  [[nodiscard]] bool joining() const;
  /// A prepared forward runs; sync: neither no_sync nor a window holds it back.
  void forward(bool sync);
  void open_no_sync();
  void close_no_sync();
  /// One micro-batch of an accumulation window. A parameter that changes while it holds a local gradient of the window
  /// is an error in the next backward: a step passed the window by.
  void open_window(bool sync);
  void close_window();
  /// Applies until the next decision.
  void set_sync(bool sync);

  /// Joins a reduction of the other ranks with this rank's accumulated gradients, or zeros. run_backward() calls it if
  /// this rank's graph did not reach the model.
  void join_backward();

  /// A backward reached a parameter since the last reduction ended.
  [[nodiscard]] bool touched() const;
  /// True if there are gradients that were never reduced (including assigned ones), or whose reduction was aborted.
  [[nodiscard]] bool unreduced() const;
  /// Steps on local gradients are wanted (local SGD).
  void allow_local(bool allowed);
  /// Every rank makes each step, on equal gradients: neither local SGD nor a join of uneven inputs is open.
  [[nodiscard]] bool steps_alike() const;
  /// Call before an optimizer step. \throws Error (usage) if unreduced() and local steps are not allowed.
  void before_step();

  /// Hooks on new gradient accumulators: autograd runs one on the stream that was current when it was made.
  void renew_hooks();
  /// A reduction that was begun is forgotten, and gradients become undefined; for one that never ran on any rank.
  void abandon();

  /// Gradients become undefined, as after the stock zero_grad().
  void zero_all();
  /// The same for some parameters; those that are not this engine's are left alone. set_to_none false: gradients that
  /// are there stay there, as zeros that optimizers step on (weight decay acts); one fill for each bucket.
  void zero(const std::vector<at::Tensor>& parameters, bool set_to_none = true);
  [[nodiscard]] bool manages(const at::Tensor& parameter) const;
  /// All of them once, and nothing of this engine's is missing in the list.
  [[nodiscard]] bool manages_exactly(const std::vector<at::Tensor>& parameters) const;

  /// Dense tensors that together hold every gradient: whole buckets (values of sparse gradients apart). Before the
  /// first reduction the gradients themselves. For clip_norm_of() and clip_value_of(); valid until the next backward.
  [[nodiscard]] std::vector<at::Tensor> gradients();

  /// What this rank steps on, with the gradients that are there now: the whole of each parameter, bucket by bucket in
  /// the order in which they are reduced, sparse ones last. Before the first reduction in the parameters' order.
  [[nodiscard]] std::vector<state::Piece> pieces();

  /// Layout of the parameters in buckets; indices count the reduced parameters. Empty before the first reduction,
  /// unless the options provide it.
  [[nodiscard]] const BucketPlan& plan() const;
  [[nodiscard]] const comm::Group& group() const;
  [[nodiscard]] const BucketReducer& reducer() const;
  /// State of the hook that reduces the buckets; call between backwards.
  [[nodiscard]] ReducerState reducer_state() const;
  void load_reducer_state(const ReducerState& state);
  /// What this rank gave to the collectives that reduced its buckets.
  [[nodiscard]] int64_t bytes_given() const;

 private:
  friend void run_backward(std::span<Engine* const>, const comm::Group&, const std::function<void()>&);
  friend class UnevenJoin;
  std::shared_ptr<Core> core_;
};

/// Runs a backward, then finishes the reductions of the engines in the given order, which must be equal on all ranks. A
/// rank whose graph misses a model joins with zeros if another rank's graph reached it: with several engines the ranks
/// exchange one integer per engine over `group`.
///
/// Engines with sync() == false stay local.
void run_backward(std::span<Engine* const> engines, const comm::Group& group, const std::function<void()>& backward);

}  // namespace accelerate::gradient

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
  /// The same parameters are used in every backward, on every rank: what was unused in the first reduction stays so.
  /// Saves counting the uses; another set of used parameters is then an error.
  bool static_graph = false;
  /// How buckets are reduced.
  CommHook hook{};
  /// Buckets are laid out like that at once, instead of in the order that the first reduction learns. Its indices count
  /// the parameters that need a gradient, each once, those of a bucket of one dtype and device; keys and bytes are not
  /// looked at. Sparse gradients become dense. Not with static_graph, which has to learn.
  std::optional<BucketPlan> plan{};
  bool operator==(const EngineOptions&) const = default;
};

/// Data-parallel gradients: after a synchronised backward every parameter's gradient is the mean over all ranks of what
/// the ranks had accumulated, bit for bit the same on all of them.
///
/// Hooks sit on the parameters, so any backward that touches them is reduced, whoever calls it. The first reduction
/// learns the order in which gradients arrive (rank 0's counts) and which are sparse, and lays the flat buckets out;
/// from the second on full buckets are reduced while backward goes on.
///
/// Reduced gradients are views into the buckets. A parameter that no rank used since its gradient was zeroed ends with
/// an undefined gradient; one that some ranks used ends with the mean on all ranks, the others counting as zeros.
/// Sparse gradients stay sparse. User code may drop or replace gradients: a replaced one is local until it is reduced.
///
/// Parameters may move to another dtype or device (module->to()): the next forward(), run_backward(), join or step
/// notices, gradients that are there follow them, and the next reduction lays the buckets out anew. On all ranks alike.
///
/// All ranks make the engine, run synchronised backwards and zero gradients in the same order. Errors of peers come out
/// of backward as Error (peer).
class Engine {
 public:
  struct Core;

  /// group        its collectives are this engine's alone: give it Group::duplicate()
  /// parameters   of one model, any dtypes and devices; those that need no gradient are made equal and else left out,
  ///              those listed twice count once
  /// Compares names, shapes and dtypes over the ranks, then makes every value rank 0's. A gradient that a parameter has
  /// already counts as this rank's own, not yet reduced.
  /// Throws Error (usage) where another engine averages one of the parameters: two would add up each other's sums.
  Engine(comm::Group group, const std::vector<NamedTensor>& parameters, EngineOptions options = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  /// Gradients are averaged no more; another engine may take the parameters over. Nothing else may be called after it
  /// but by an UnevenJoin that still knows this engine.
  void retire();

  /// Whether the next backward's gradients are reduced; else they stay local, to be reduced with those of the next
  /// synchronised backward. At first true. See SyncRule for who decides when.
  [[nodiscard]] bool sync() const;
  /// In an UnevenJoin, whose ranks may have run out.
  [[nodiscard]] bool joining() const;
  /// A prepared forward runs; sync: neither no_sync nor a window holds it back.
  void forward(bool sync);
  void open_no_sync();
  void close_no_sync();
  /// One micro-batch of an accumulation window. A parameter that changes while it holds a local gradient of the window
  /// is an error in the next backward: a step passed the window by.
  void open_window(bool sync);
  void close_window();
  /// For all that comes, until somebody else decides.
  void set_sync(bool sync);

  /// Takes part in a reduction of the other ranks with what this rank has accumulated, zeros where it has nothing.
  /// run_backward() calls it where this rank's graph did not touch the model.
  void join_backward();

  /// A backward reached a parameter since the last reduction ended.
  [[nodiscard]] bool touched() const;
  /// Gradients are there that were never reduced (user code's assignments too), or whose reduction broke off.
  [[nodiscard]] bool unreduced() const;
  /// Steps on local gradients are wanted (local SGD).
  void allow_local(bool allowed);
  /// Every rank makes each step, on equal gradients: neither local SGD nor a join of uneven inputs is open.
  [[nodiscard]] bool steps_alike() const;
  /// To be called before an optimizer steps. Throws Error (usage) where unreduced() and not allowed.
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

  /// How the parameters lie in buckets; indices count the parameters that are reduced. Empty before the first
  /// reduction, unless the options gave it.
  [[nodiscard]] const BucketPlan& plan() const;
  [[nodiscard]] const comm::Group& group() const;
  [[nodiscard]] const BucketReducer& reducer() const;
  /// What the hook that reduces the buckets goes on from; call it between backwards.
  [[nodiscard]] ReducerState reducer_state() const;
  void load_reducer_state(const ReducerState& state);
  /// What this rank gave to the collectives that reduced its buckets.
  [[nodiscard]] int64_t bytes_given() const;

 private:
  friend void run_backward(std::span<Engine* const>, const comm::Group&, const std::function<void()>&);
  friend class UnevenJoin;
  std::shared_ptr<Core> core_;
};

/// Runs a backward, then finishes the reductions of engines one after another in the order given, which is the same on
/// all ranks. A rank whose graph misses a model joins with zeros as long as another rank's graph reached it: with
/// several engines the ranks tell one another by one reduction over group of an integer per engine.
///
/// Engines whose sync() is false stay local.
void run_backward(std::span<Engine* const> engines, const comm::Group& group, const std::function<void()>& backward);

}  // namespace accelerate::gradient

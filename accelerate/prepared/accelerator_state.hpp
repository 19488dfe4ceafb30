// SPDX-License-Identifier: Apache-2.0
// State that the prepared objects of one Accelerator share.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

#include "accelerate/comm/group.hpp"
#include "accelerate/gradient/sync_schedule.hpp"
#include "accelerate/job/mesh_groups.hpp"
#include "accelerate/precision/policy.hpp"
#include "accelerate/prepared/active_loaders.hpp"
#include "accelerate/prepared/loss_count.hpp"
#include "accelerate/prepared/master_weights.hpp"
#include "accelerate/prepared/micro_batch_scope.hpp"
#include "accelerate/prepared/registry.hpp"
#include "accelerate/prepared/step_watch.hpp"
#include "accelerate/sharding/full_shard_options.hpp"
#include "accelerate/sharding/strategy.hpp"
#include "accelerate/state/batch_info.hpp"

namespace accelerate::prepared {

class LossScaling;

/// State of gradient accumulation.
struct AccumulationState {
  gradient::SyncOptions options{};
  /// This micro-batch ends its window, so optimizers step.
  bool ends = true;
  /// k/m in the last micro-batch of a short window of m < k micro-batches, otherwise 1.
  double scale = 1.0;
  /// Count of the window's losses, if they are sums.
  WindowCount count{};
  /// The accumulate() scope that was opened last.
  MicroBatchScope scope{};

  /// Begins a micro-batch.
  /// \param last_batch  True if the active loader returned its last batch.
  gradient::SyncDecision begin(bool last_batch, const RankContext& place) {
    const auto decision = gradient::next_micro_batch(state_, options, last_batch, place);
    count.begin_micro_batch(/*of_new_window=*/state_.window == 0, /*of_several=*/options.steps > 1);
    awaits_backward_ = is_last_of_several_ = decision.sync && state_.window > 0;
    state_ = decision.next;
    ends = decision.sync;
    scale = decision.scale;
    return decision;
  }
  void backward_done() { awaits_backward_ = false; }
  /// Resets to the state before the first micro-batch.
  void forget() {
    end_micro_batch();
    ends = true;
    state_ = {};
    count = {};
  }
  void end_micro_batch() {
    scale = 1.0;
    awaits_backward_ = is_last_of_several_ = false;
    count.end_micro_batch();
  }
  /// Position of the accumulation.
  [[nodiscard]] const gradient::SyncState& state() const { return state_; }
  /// Continues at the position of an earlier run.
  void resume(const gradient::SyncState& state, const WindowCount& counted) {
    forget();
    state_ = state;
    count = counted;
    ends = state.window == 0;
  }
  /// Ends the window. The next micro-batch begins a new one; the counts of the losses are kept until then.
  void close_window_early() {
    scope.managed_by_program();
    ends = true;
    state_ = {};
  }
  void continue_window() {
    scope.managed_by_program();
    ends = false;
  }
  /// Returns true if the gradients are incomplete: within a window, and in its last micro-batch before a backward.
  [[nodiscard]] bool awaits_backward() const { return !ends || awaits_backward_; }
  /// Returns true in the micro-batch that ends a window of several.
  [[nodiscard]] bool is_last_of_several() const { return is_last_of_several_; }

 private:
  gradient::SyncState state_{};
  bool is_last_of_several_ = false;
  bool awaits_backward_ = false;  ///< in the last of several micro-batches, before its backward
};

struct AcceleratorState {
  /// The ranks that train the same parameters on other samples or other parts of a sequence: gradients, initial values,
  /// buffers, sharding, loss counts. The same as mesh.data_context. Loaders and metrics use mesh.data.
  comm::Group group{};
  /// All dimensions. mesh.world is for checkpoints and for everything that all ranks do once.
  job::MeshGroups mesh{};
  at::Device device = at::kCPU;
  RankContext place{};
  /// The dtypes of all prepared models.
  precision::Policy policy{};
  /// Masters of the parameters that the policy stores in bfloat16.
  MasterWeights masters{};
  /// Null unless the policy scales the loss.
  std::shared_ptr<LossScaling> scaling{};
  /// Number of models in local SGD. If it is positive, optimizers step on gradients that differ between the ranks.
  int64_t local_steps = 0;
  AccumulationState window{};
  /// Detects optimizer steps that bypass the prepared optimizers.
  StepWatch watch{};
  /// Which parts of the training state are divided over the ranks. Checked by check_sharding().
  sharding::ShardingStrategy sharding = sharding::ShardingStrategy::no_shard;
  sharding::StateDictType state_dict_type = sharding::StateDictType::sharded_state_dict;
  /// For shard_grad_op and full_shard.
  sharding::FullShardOptions full_shard{};
  /// If true, prepared SGD, Adam, AdamW, Adagrad and RMSprop step by fused kernels; otherwise by their own step().
  bool fused_optimizer = true;
  /// If true, backward() throws if the loss is NaN.
  bool stop_at_nan_loss = false;
  /// Number of backward() calls and pipeline steps.
  int64_t backwards = 0;
  /// A device captures the running step. Replays do not repeat changes on the host.
  bool capturing = false;
  ActiveLoaders active_loaders{};
  /// Debug mode: compares values that must be equal on all ranks.
  bool debug = false;
  /// Steps of the optimizer that was prepared first. Skipped steps are included until their flags are read.
  int64_t steps = 0;
  /// Number of optimizer steps between comparisons of parameters and buffers across the ranks. If 0, they are not
  /// compared.
  int64_t check_synchronized_every = 0;
  /// Its entries refer to this struct, which therefore must outlive them; see share_with_state().
  Registry registry{};

  /// Position of the loop that accumulate() and gather_for_metrics() follow; null outside every loop.
  [[nodiscard]] const state::BatchInfo* active_loader() const { return active_loaders.active(); }
};

/// Returns the core for a handle, with a pointer that also keeps `shared` alive after the Accelerator is destroyed.
/// \param core  Entry of the registry of `shared`. It refers to `shared`.
template <typename Core>
std::shared_ptr<Core> share_with_state(std::shared_ptr<AcceleratorState> shared, std::shared_ptr<Core> core) {
  auto both = std::make_shared<std::pair<std::shared_ptr<AcceleratorState>, std::shared_ptr<Core>>>(std::move(shared),
                                                                                                    std::move(core));
  return {both, both->second.get()};
}

/// Waits until the memory of all sharded parameters has the values of the last step, for code that reads it without an
/// operator. \throws Error (peer) if a rank failed.
void complete_steps(AcceleratorState& shared);

}  // namespace accelerate::prepared

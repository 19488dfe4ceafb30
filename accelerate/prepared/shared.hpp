// SPDX-License-Identifier: Apache-2.0
// What the prepared objects of one Accelerator share.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

#include "accelerate/comm/group.hpp"
#include "accelerate/gradient/sync_schedule.hpp"
#include "accelerate/precision/policy.hpp"
#include "accelerate/prepared/loss_count.hpp"
#include "accelerate/prepared/master_weights.hpp"
#include "accelerate/prepared/micro_batch_scope.hpp"
#include "accelerate/prepared/open_loops.hpp"
#include "accelerate/prepared/registry.hpp"
#include "accelerate/prepared/step_watch.hpp"
#include "accelerate/state/batch_info.hpp"

namespace accelerate::prepared {

class LossScaling;

/// Where gradient accumulation stands.
struct Window {
  gradient::SyncOptions options{};
  /// This micro-batch ends its window: optimizers step.
  bool ends = true;
  /// k/m in the last micro-batch of a window of m < k, else 1.
  double scale = 1.0;
  /// What its losses sum over, if they are sums.
  WindowCount count{};
  /// The accumulate() scope that is open.
  MicroBatchScope scope{};

  /// A micro-batch begins. last_batch: the active loader gives its last one.
  gradient::SyncDecision begin(bool last_batch, const Place& place) {
    const auto decision = gradient::next_micro_batch(state_, options, last_batch, place);
    count.begin_micro_batch(/*of_new_window=*/state_.window == 0, /*of_several=*/options.steps > 1);
    awaits_backward_ = is_last_of_several_ = decision.sync && state_.window > 0;
    state_ = decision.next;
    ends = decision.sync;
    scale = decision.scale;
    return decision;
  }
  void backward_done() { awaits_backward_ = false; }
  /// As if none had begun.
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
  /// Where the accumulation stands.
  [[nodiscard]] const gradient::SyncState& state() const { return state_; }
  /// Goes on where another run stood.
  void resume(const gradient::SyncState& state, const WindowCount& counted) {
    forget();
    state_ = state;
    count = counted;
    ends = state.window == 0;
  }
  /// The window's next micro-batch is the first of another; what it counted stays until then.
  void end_now() {
    scope.managed_by_program();
    ends = true;
    state_ = {};
  }
  void not_yet() {
    scope.managed_by_program();
    ends = false;
  }
  /// No backward ran yet in a micro-batch before whose backward gradients are those of the ones before.
  [[nodiscard]] bool awaits_backward() const { return !ends || awaits_backward_; }
  /// In the micro-batch that ends a window of several.
  [[nodiscard]] bool is_last_of_several() const { return is_last_of_several_; }

 private:
  gradient::SyncState state_{};
  bool is_last_of_several_ = false;
  bool awaits_backward_ = false;  ///< in the last of several micro-batches, before its backward
};

struct Shared {
  comm::Group group{};
  at::Device device = at::kCPU;
  Place place{};
  /// The dtypes of all prepared models.
  precision::Policy policy{};
  /// Of parameters that the policy stores in bfloat16.
  MasterWeights masters{};
  /// Null unless the policy scales the loss.
  std::shared_ptr<LossScaling> scaling{};
  /// Local SGD is under way for so many models: optimizers step on gradients that differ between the ranks.
  int64_t local_steps = 0;
  Window window{};
  /// Detects optimizer steps that bypass the prepared optimizers.
  StepWatch watch{};
  /// If true, prepared SGD, Adam, AdamW, Adagrad and RMSprop step by fused kernels; otherwise by their own step().
  bool fused_optimizer = true;
  /// A device records the step that runs now; what moves on the host would not move again in its replays.
  bool recording = false;
  OpenLoops open_loops{};
  /// Debug mode: what the ranks must have in common is compared.
  bool debug = false;
  /// Steps of the optimizer that was prepared first; skipped ones too until their flags are read.
  int64_t steps = 0;
  /// Optimizer steps after which parameters and buffers are compared across the ranks; 0: never.
  int64_t check_synchronized_every = 0;
  /// Its entries refer to this struct, which therefore outlives them: see with_shared().
  Registry registry{};

  /// Where the innermost open loop stands; null outside every loop.
  [[nodiscard]] const state::BatchInfo* active_loader() const { return open_loops.innermost(); }
};

/// core   an entry of this struct's registry, which it refers to
/// returns   it, for a handle: keeps both alive, also when the Accelerator is gone
template <typename Core>
std::shared_ptr<Core> with_shared(std::shared_ptr<Shared> shared, std::shared_ptr<Core> core) {
  auto both =
      std::make_shared<std::pair<std::shared_ptr<Shared>, std::shared_ptr<Core>>>(std::move(shared), std::move(core));
  return {both, both->second.get()};
}

}  // namespace accelerate::prepared

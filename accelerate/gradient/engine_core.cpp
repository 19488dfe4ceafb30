// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/engine_core.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

namespace accelerate::gradient {
namespace {

struct ArrivalHook : torch::autograd::FunctionPostHook {
  ArrivalHook(std::weak_ptr<Engine::Core> the_core, size_t the_index) : core(std::move(the_core)), index(the_index) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    if (const auto alive = core.lock()) alive->arrived(index);
    return outputs;
  }

  std::weak_ptr<Engine::Core> core;
  size_t index;
};

bool averaged_elsewhere(const std::vector<std::unique_ptr<torch::autograd::FunctionPostHook>>& hooks) {
  return std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) {
    const auto* arrival = dynamic_cast<const ArrivalHook*>(hook.get());
    return arrival != nullptr && !arrival->core.expired();
  });
}

}  // namespace

Engine::Core::Core(comm::Group the_group, std::vector<ParameterState> the_slots, EngineOptions the_options)
    : group(std::move(the_group)), options(the_options), states(std::move(the_slots)) {
  for (size_t i = 0; i < states.size(); ++i) index_of.emplace(states[i].parameter.unsafeGetTensorImpl(), i);
}

Engine::Core::~Core() = default;

void Engine::Core::hook_up() {
  std::vector<Accumulator> accumulators;
  for (const ParameterState& state : states) {
    accumulators.push_back(torch::autograd::impl::grad_accumulator(state.parameter));
    if (!averaged_elsewhere(accumulators.back()->post_hooks())) continue;
    base::fail(ErrorKind::usage, group.place(), "prepare",
               "the gradient of parameter {} is averaged already, through another Accelerator or "
               "DistributedDataParallel that prepared its module; use that one, or end it first (free_memory(), or let "
               "its prepared model go)",
               state.name);
  }
  // A tensor holds its accumulator weakly; ours keeps it, and the hook with it, alive.
  accumulators_ = std::move(accumulators);
  for (size_t i = 0; i < states.size(); ++i) {
    hook_keys_.push_back(accumulators_[i]->add_post_hook(std::make_unique<ArrivalHook>(weak_from_this(), i)));
  }
}

void Engine::Core::unhook() {
  for (size_t i = 0; i < accumulators_.size(); ++i) accumulators_[i]->del_post_hook(hook_keys_[i]);
  accumulators_.clear();
  hook_keys_.clear();
}

void Engine::Core::arrived(size_t index) {
  const std::lock_guard lock(mutex);
  const at::NoGradGuard no_grad;
  ParameterState& state = states[index];
  touched = true;
  if (!sync) {
    state.local = true;
    if (state.view.defined() && state.used())
      state.attach();  // what follows is added there, and no memory is held twice
    return;
  }
  begin();
  const bool launched = state.bucket >= 0 && static_cast<size_t>(state.bucket) < next_;
  if (state.arrived && launched) {
    base::fail(ErrorKind::usage, group.place(), "backward",
               "parameter {} got a second gradient in one reduction, while the first is on its way to {} ranks; call "
               "backward once per reduction, or all but the last under no_sync",
               state.name, group.size());
  }
  const bool again = std::exchange(state.arrived, true);
  if (buckets.empty()) {
    if (!again) order_.push_back(static_cast<int64_t>(index));
    return;
  }
  if (again) return;
  --(state.sparse_dim == 0 ? buckets[static_cast<size_t>(state.bucket)] : buckets.back()).pending;
  while (early_ && join_coordinator == nullptr && next_ < buckets.size() && buckets[next_].pending == 0) {
    launch_bucket(buckets[next_++]);
  }
}

void Engine::Core::begin() {
  const int id = torch::autograd::get_current_graph_task_id();
  if (active_ && !backward_alive_.expired()) {
    // A backward inside a backward (activation checkpointing): weights may come again, so nothing leaves early.
    if (id != graph_task_) early_ = false;
    return;
  }
  complete();
  active_ = true;
  graph_task_ = id;
  backward_alive_ = deferral;
  if (deferral != nullptr) return;
  // The graph task owns its callbacks: when backward throws, the token dies with them uncalled.
  auto token = std::make_shared<char>();
  backward_alive_ = token;
  torch::autograd::Engine::get_default_engine().queue_callback([core = weak_from_this(), token] {
    if (const auto alive = core.lock()) alive->end_of_backward();
  });
}

void Engine::Core::end_of_backward() {
  const std::lock_guard lock(mutex);
  if (!active_) return;
  launch();
  // After the callbacks of the other engines: each of them launches before one waits.
  torch::autograd::Engine::get_default_engine().queue_callback([core = weak_from_this()] {
    if (const auto alive = core.lock()) alive->end_of_launch();
  });
}

void Engine::Core::end_of_launch() {
  const std::lock_guard lock(mutex);
  finish();
}

void Engine::Core::join() {
  complete();
  active_ = true;
  graph_task_ = -1;
  backward_alive_.reset();
}

void Engine::Core::complete() {
  if (!active_) return;
  launch();
  finish();
}

void Engine::Core::launch() {
  const at::NoGradGuard no_grad;
  // Ranks that have run out of batches must be told first.
  if (!active_ || join_coordinator != nullptr) return;
  while (next_ < buckets.size()) launch_bucket(buckets[next_++]);
}

void Engine::Core::divide_by(int64_t ranks) {
  if (ranks == divisor_ && share_.defined()) return;
  divisor_ = ranks;
  share_ = number(1.0 / static_cast<double>(ranks));
}

// Divided before they are summed, as in PyTorch (float16 overflows later then): on their way into the bucket, which
// costs no pass over the memory, or, when some were accumulated in it, all in one.
void Engine::Core::fill(FlatBucket& bucket) {
  bool accumulated = false;
  for (const int64_t i : bucket.members) {
    ParameterState& state = states[static_cast<size_t>(i)];
    state.contributes = state.used();
    accumulated |= state.contributes && state.inside();
  }
  for (const int64_t i : bucket.members) {
    ParameterState& state = states[static_cast<size_t>(i)];
    state.contributes ? state.attach(accumulated ? at::Tensor() : share_) : state.blank_out();
  }
  if (accumulated) bucket.gradients.mul_(share_);
}

void Engine::Core::launch_bucket(FlatBucket& bucket) {
  if (join_coordinator == nullptr) divide_by(group.size());
  fill(bucket);
  if (&bucket == &buckets.back()) {
    for (ParameterState& state : states) {
      if (state.sparse_dim > 0) state.contributes = state.used();
    }
    if (bucket.counts.defined()) write_counts(bucket.counts);
  }
  // run_backward() waits for the last one at once, and for all engines in one order.
  const bool waits_at_once = &bucket == &buckets.back() && deferral != nullptr;
  bucket.work = group.all_reduce_async(bucket.flat, comm::ReduceOp::sum,
                                       waits_at_once ? comm::Execution::deferred : comm::Execution::eager);
}

void Engine::Core::finish() {
  const at::NoGradGuard no_grad;
  if (!active_) return;
  try {
    divide_by(join_coordinator == nullptr ? group.size() : join_coordinator->announce(join_operation).divisor);
    if (buckets.empty()) learn_layout();
    while (next_ < buckets.size()) launch_bucket(buckets[next_++]);
    for (FlatBucket& bucket : buckets) {
      bucket.work.wait();
      bucket.work = {};
    }
    settle_unused();
    settle_sparse(1.0 / static_cast<double>(divisor_));
    if (options.static_graph) check_static_graph();
  } catch (...) {
    broken_off = true;
    reset();
    throw;
  }
  for (ParameterState& state : states) state.local = false;
  reset();
}

}  // namespace accelerate::gradient

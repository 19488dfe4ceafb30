// SPDX-License-Identifier: Apache-2.0
// Private: common part of the fused steps. A fused step defines its kernel and companion tensors; this class groups
// shards into calls and counts steps.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "accelerate/optim/fused_step.hpp"
#include "accelerate/optim/kernel_calls.hpp"

namespace accelerate::optim {

// Finds the group of a parameter. Cached positions are checked, because user code may change the groups.
class GroupLookup {
 public:
  explicit GroupLookup(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}
  size_t operator()(const state::ParameterShard& param_shard);

 private:
  struct GroupPosition {
    size_t group = 0, index = 0;
  };
  bool holds(const GroupPosition& place, const void* key) const;
  void rebuild_positions();

  torch::optim::Optimizer& optimizer_;
  GroupPosition next_;  // position after the last result, so that a search in group order is immediate
  std::unordered_map<const void*, GroupPosition> places_;
};

class ShardedStep : public FusedStep {
 public:
  ShardedStep(torch::optim::Optimizer& optimizer, const char* kernel)
      : optimizer_(optimizer), kernel_(kernel), group_of_(optimizer) {}

  bool step(const StepScale& scale) final;
  bool step(std::span<const state::ParameterShard> parameter_shards, const StepScale& scale) final;
  void begin_capture() final;
  CapturedScalars end_capture() final;
  bool can_capture() const final { return true; }
  void add_to(CaptureFingerprint& fingerprint) final;

 protected:
  // The tensor that is updated: the shard's value, or its master.
  struct StepTarget {
    const state::ParameterShard& param_shard;
    const at::Tensor& parameter;
    size_t group;
  };

  // Adds a shard to one call with add(), and the other tensors that the kernel requires.
  virtual void collect(const StepTarget& stepped) = 0;
  virtual void update(Call& call, const StepScale& scale) = 0;
  // Called after the kernel: stores the new state and counts the step.
  virtual void keep(const Call& call, const StepScale& scale) = 0;

  virtual void add_options(CaptureFingerprint& fingerprint, size_t group) = 0;
  virtual void add_state(CaptureFingerprint& fingerprint, torch::optim::OptimizerParamState& state) = 0;
  // Adds to the counts of these states and returns the new count.
  virtual int64_t add_to_counts(std::span<torch::optim::OptimizerParamState* const> states, int64_t steps) = 0;
  // Memory that a call uses besides its lists.
  virtual std::vector<at::Tensor> held_by(const Call&) const { return {}; }
  [[nodiscard]] bool capturing() const { return capture_.has_value(); }
  // The first step creates state, so it must not be captured.
  [[noreturn]] static void throw_capture_before_first_step(const StepTarget& stepped);
  [[noreturn]] static void throw_capture_before_first_step(const std::string& name, at::IntArrayRef sizes);
  // Returns a state tensor in the layout, dtype and device of the parameter. Creates it on the first step, and converts
  // a tensor that differs. Throws if the conversion would be captured.
  at::Tensor aligned_state(const StepTarget& stepped, const at::Tensor& state) const;

  Call& add(const StepTarget& stepped, int64_t step);
  // Created if it does not exist.
  template <typename State, typename Make>
  State& state_of(const StepTarget& stepped, const Make& make) {
    if (capturing() && optimizer_.state().find(stepped.param_shard.key) == optimizer_.state().end()) {
      throw_capture_before_first_step(stepped);
    }
    auto& state = optimizer_.state()[stepped.param_shard.key];
    if (!state) state = make();
    return static_cast<State&>(*state);
  }
  template <typename State>
  State& state_of(const StepTarget& stepped) {
    return state_of<State>(stepped, [] { return std::make_unique<State>(); });
  }
  template <typename Options>
  const Options& options_of(size_t group) const {
    return static_cast<const Options&>(optimizer_.param_groups()[group].options());
  }

  torch::optim::Optimizer& optimizer_;

 private:
  std::span<const state::ParameterShard> all();
  bool knows(const state::ParameterShard& param_shard) const;
  bool has_kernel(const at::Tensor& parameter) const;
  void run(Call& call, const StepScale& scale);
  void read_from_device(Call& call);
  void register_captured_call(const Call& call);

  const char* kernel_;  // schema; null if it consists of operators that every device has
  GroupLookup group_of_;
  std::vector<state::ParameterShard> all_;
  Calls calls_;
  std::optional<CapturedScalars> capture_;
  // Device memory for rates and counts of a capture, per device.
  struct Scalars {
    at::Tensor memory;
    int64_t taken = 0;
  };
  std::vector<Scalars> scalars_;
};

// For optimizers that count steps per parameter.
template <typename State>
class CountedStep : public ShardedStep {
 public:
  using ShardedStep::ShardedStep;
  void discard_skipped_steps() final { cancelled_.take_back<State>(optimizer_); }

 protected:
  Call& add_counted(const StepTarget& stepped, State& state) {
    if (capturing() && state.step() == 0) throw_capture_before_first_step(stepped);
    Call& call = add(stepped, state.step() + 1);
    call.states.push_back(&state);
    call.keys.push_back(stepped.param_shard.key);
    return call;
  }
  // For kernels that read the step count.
  void write_step_counts(Call& call) const {
    fill_steps(call);
    cancelled_.correct(call);
  }
  void keep(const Call& call, const StepScale& scale) override {
    const bool counts_cancelled = scale.skip && !call.device.is_cpu();
    if (counts_cancelled && capturing() && !cancelled_.knows(call)) {
      throw_capture_before_first_step({}, call.parameters.front().sizes());
    }
    for (auto* state : call.states) static_cast<State&>(*state).step(call.step);
    if (counts_cancelled) cancelled_.note(call, *scale.skip);
  }
  int64_t add_to_counts(std::span<torch::optim::OptimizerParamState* const> states, int64_t steps) override {
    for (auto* state : states) static_cast<State&>(*state).step(static_cast<State&>(*state).step() + steps);
    return states.empty() ? 0 : static_cast<State&>(*states.front()).step();
  }
  std::vector<at::Tensor> held_by(const Call& call) const override { return cancelled_.counts_of(call); }

 private:
  SkippedSteps cancelled_;
};

}  // namespace accelerate::optim

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/sharded_step.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/base/version_counter.hpp"

namespace accelerate::optim {
namespace {

// The kernels iterate over a parameter and its companions in memory order, so all need the same dense layout.
bool has_same_layout(const at::Tensor& companion, const at::Tensor& parameter) {
  return companion.strides() == parameter.strides() || (companion.is_contiguous() && parameter.is_contiguous());
}

bool fits(const at::Tensor& state, const at::Tensor& parameter) {
  return state.defined() && state.numel() == parameter.numel() && state.device() == parameter.device() &&
         state.scalar_type() == parameter.scalar_type() && has_same_layout(state, parameter);
}

const at::Tensor& mark_stepped(const state::ParameterShard& param_shard) {
  return param_shard.master.defined() ? param_shard.master : param_shard.value;
}

// Copies scalars of another device; the host only waits for copies to the CPU. Kernels on devices require the flag 1.
StepScale on_device(const StepScale& scale, at::Device device) {
  const auto moved = [&](const std::optional<at::Tensor>& scalar) -> std::optional<at::Tensor> {
    if (!scalar || scalar->device() == device) return scalar;
    return scalar->to(device, /*non_blocking=*/!device.is_cpu());
  };
  StepScale here{.scale = moved(scale.scale), .skip = moved(scale.skip)};
  if (here.skip && !device.is_cpu()) here.skip = here.skip->clamp_max(1);
  return here;
}

// Fused kernels do not bump versions. As after an unfused step, a backward that saved the old values must detect the
// change.
void mark_changed(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) base::count_write(tensor);
}

bool has_known_dtype(const state::ParameterShard& param_shard) {
  const auto dtype = param_shard.gradient.scalar_type();
  return dtype == param_shard.value.scalar_type() ||
         (param_shard.master.defined() && dtype == param_shard.master.scalar_type());
}

bool is_set(const std::optional<at::Tensor>& flag) { return flag && *flag->const_data_ptr<float>() != 0; }

}  // namespace

bool GroupLookup::holds(const GroupPosition& place, const void* key) const {
  const auto& groups = optimizer_.param_groups();
  if (place.group >= groups.size() || place.index >= groups[place.group].params().size()) return false;
  return groups[place.group].params()[place.index].unsafeGetTensorImpl() == key;
}

void GroupLookup::rebuild_positions() {
  places_.clear();
  const auto& groups = optimizer_.param_groups();
  for (size_t group = 0; group < groups.size(); ++group) {
    for (size_t index = 0; index < groups[group].params().size(); ++index) {
      places_.emplace(groups[group].params()[index].unsafeGetTensorImpl(), GroupPosition{group, index});
    }
  }
}

size_t GroupLookup::operator()(const state::ParameterShard& param_shard) {
  const auto& groups = optimizer_.param_groups();
  while (next_.group < groups.size() && next_.index == groups[next_.group].params().size()) next_ = {next_.group + 1};
  if (next_.group >= groups.size()) next_ = {};
  GroupPosition place = next_;
  if (!holds(place, param_shard.key)) {
    auto found = places_.find(param_shard.key);
    if (found == places_.end() || !holds(found->second, param_shard.key)) {
      rebuild_positions();
      found = places_.find(param_shard.key);
    }
    if (found == places_.end()) {
      base::fail(
          ErrorKind::usage, {}, "optimizer.step",
          "{} is not one of the optimizer's {} parameters; give the optimizer the parameter before it is stepped on",
          param_shard.name.empty() ? "a piece" : param_shard.name, places_.size());
    }
    place = found->second;
  }
  next_ = {place.group, place.index + 1};
  return place.group;
}

// CPU and CUDA have the kernels, and some of LibTorch's other devices do.
bool ShardedStep::has_kernel(const at::Tensor& parameter) const {
  if (kernel_ == nullptr || parameter.is_cpu() || parameter.is_cuda()) return true;
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto schema = dispatcher.findSchemaOrThrow(kernel_, "");
  const auto key = c10::computeDispatchKey(std::nullopt, parameter.layout(), parameter.device());
  return schema.hasKernelForDispatchKey(key) || dispatcher.hasBackendFallbackForDispatchKey(key);
}

bool ShardedStep::knows(const state::ParameterShard& param_shard) const {
  const at::Tensor& parameter = mark_stepped(param_shard);
  const at::Tensor& gradient = param_shard.gradient;
  return gradient.layout() == at::kStrided && parameter.layout() == at::kStrided && parameter.is_floating_point() &&
         !gradient.is_neg() && !parameter.is_neg() &&  // memory has the negated values
         has_known_dtype(param_shard) && gradient.device() == parameter.device() && has_kernel(parameter) &&
         parameter.is_non_overlapping_and_dense() && has_same_layout(gradient, parameter);
}

// The optimizer's parameters as shards. The list is kept, so that repeated steps do not allocate.
std::span<const state::ParameterShard> ShardedStep::all() {
  size_t count = 0;
  for (const auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (count == all_.size()) all_.emplace_back();
      state::ParameterShard& param_shard = all_[count++];
      if (param_shard.key != parameter.unsafeGetTensorImpl()) param_shard = state::whole_parameter({}, parameter);
      param_shard.gradient = parameter.grad();
    }
  }
  all_.resize(count);
  return all_;
}

bool ShardedStep::step(const StepScale& scale) {
  // The list must not keep gradients alive.
  struct Forget {
    std::vector<state::ParameterShard>& parameter_shards;
    ~Forget() {
      for (state::ParameterShard& param_shard : parameter_shards) param_shard.gradient.reset();
    }
  } forget{all_};
  return step(all(), scale);
}

bool ShardedStep::step(std::span<const state::ParameterShard> parameter_shards, const StepScale& scale) {
  for (const state::ParameterShard& param_shard : parameter_shards) {
    if (param_shard.gradient.defined() && !knows(param_shard)) return false;
  }
  const at::NoGradGuard no_grad;
  const ClearedAtEnd cleared{calls_};
  for (const state::ParameterShard& param_shard : parameter_shards) {
    if (param_shard.gradient.defined()) collect({param_shard, mark_stepped(param_shard), group_of_(param_shard)});
  }
  calls_.run([&](Call& call) { run(call, on_device(scale, call.device)); });
  return true;
}

Call& ShardedStep::add(const StepTarget& stepped, int64_t step) {
  Call& call = calls_.of(stepped.group, stepped.parameter, step);
  const state::ParameterShard& param_shard = stepped.param_shard;
  call.parameters.push_back(stepped.parameter);
  call.gradients.push_back(param_shard.gradient);
  if (!param_shard.master.defined()) return call;
  if (const auto dtype = param_shard.master.scalar_type(); dtype != param_shard.gradient.scalar_type()) {
    call.gradients.back() = at::empty_like(param_shard.gradient, param_shard.gradient.options().dtype(dtype));
    call.narrow_gradients.push_back(param_shard.gradient);
    call.wide_gradients.push_back(call.gradients.back());
  }
  call.masters.push_back(param_shard.master);
  call.values.push_back(param_shard.value);
  return call;
}

void ShardedStep::run(Call& call, const StepScale& scale) {
  if (call.device.is_cpu() && is_set(scale.skip)) return;
  if (capture_) read_from_device(call);
  // One kernel converts all tensors, if the device has such a kernel.
  if (!call.narrow_gradients.empty()) at::_foreach_copy_(call.wide_gradients, call.narrow_gradients);
  update(call, scale);
  if (!call.masters.empty()) at::_foreach_copy_(call.values, call.masters);
  mark_changed(call.parameters);  // no graph saves masters, but a parameter may have none
  mark_changed(call.values);
  keep(call, scale);
  if (capture_) register_captured_call(call);
}

// The scalars belong to the capture and are written before each replay, not now, because device work is being
// captured.
void ShardedStep::read_from_device(Call& call) {
  const auto found = std::find_if(scalars_.begin(), scalars_.end(),
                                  [&](const Scalars& each) { return each.memory.device() == call.device; });
  if (found == scalars_.end() || found->taken + 2 > found->memory.numel()) {
    base::fail(ErrorKind::usage, {}, "optimizer.step",
               "{} kernel calls of the optimizer are captured on {}, at most {} can be; reduce the number of steps in "
               "the captured function",
               found == scalars_.end() ? 1 : found->taken / 2 + 1, call.device.str(),
               found == scalars_.end() ? 0 : found->memory.numel() / 2);
  }
  call.rate = found->memory.select(0, found->taken++);
  call.step_tensor = found->memory.select(0, found->taken++);
}

void ShardedStep::register_captured_call(const Call& call) {
  capture_->add({.rate = [this, group = call.group] { return optimizer_.param_groups()[group].options().get_lr(); },
                 .count = [this, states = call.states](int64_t steps) { return add_to_counts(states, steps); },
                 .step = call.step,
                 .device_rate_scalar = call.rate,
                 .device_count_scalar = call.step_tensor,
                 .held = held_by(call)});
}

// Allocates the scalars before the capture: the capture's own memory is reused within each replay, which would
// overwrite scalars that are written before it.
void ShardedStep::begin_capture() {
  capture_.emplace();
  scalars_.clear();
  int64_t parameters = 0;
  for (const auto& group : optimizer_.param_groups()) parameters += static_cast<int64_t>(group.params().size());
  const int64_t calls = 2 * parameters + 32;  // upper limit: a call has at least one parameter
  for (const auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      const bool known = std::any_of(scalars_.begin(), scalars_.end(),
                                     [&](const Scalars& each) { return each.memory.device() == parameter.device(); });
      if (!known) scalars_.push_back({at::empty({2 * calls}, at::TensorOptions(parameter.device()).dtype(at::kFloat))});
    }
  }
}

CapturedScalars ShardedStep::end_capture() {
  scalars_.clear();
  auto numbers = std::exchange(capture_, std::nullopt).value_or(CapturedScalars());
  numbers.ended();
  return numbers;
}

at::Tensor ShardedStep::aligned_state(const StepTarget& stepped, const at::Tensor& state) const {
  if (fits(state, stepped.parameter)) return state;
  if (capturing()) throw_capture_before_first_step(stepped);
  if (!state.defined()) return at::zeros_like(stepped.parameter);
  if (state.numel() != stepped.parameter.numel()) {
    base::fail(ErrorKind::usage, {}, "optimizer.step",
               "the optimizer's state of {} has {} elements, the parameter has {} here; the state of an optimizer that "
               "was sharded cannot be used without sharding: load a checkpoint or make a new optimizer",
               stepped.param_shard.name.empty() ? "a parameter" : "parameter " + stepped.param_shard.name,
               state.numel(), stepped.parameter.numel());
  }
  return at::empty_like(stepped.parameter).copy_(state);
}

void ShardedStep::throw_capture_before_first_step(const StepTarget& stepped) {
  throw_capture_before_first_step(stepped.param_shard.name, stepped.parameter.sizes());
}

void ShardedStep::throw_capture_before_first_step(const std::string& name, at::IntArrayRef sizes) {
  base::fail(ErrorKind::usage, {}, "optimizer.step",
             "{} of shape [{}] has its first gradient in a captured step, must have had one before: its averages "
             "would restart in each replay",
             name.empty() ? "a parameter" : "parameter " + name, c10::Join(", ", sizes));
}

void ShardedStep::add_to(CaptureFingerprint& fingerprint) {
  auto& state = optimizer_.state();
  const auto& groups = optimizer_.param_groups();
  for (size_t group = 0; group < groups.size(); ++group) {
    add_options(fingerprint, group);
    fingerprint.add(uint64_t{groups[group].params().size()});
    for (const at::Tensor& parameter : groups[group].params()) {
      fingerprint.add(parameter);
      const auto found = state.find(parameter.unsafeGetTensorImpl());
      if (found == state.end()) continue;
      fingerprint.add(static_cast<const void*>(found->second.get()));
      add_state(fingerprint, *found->second);
    }
  }
}

}  // namespace accelerate::optim

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/step_on_pieces.hpp"

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

namespace accelerate::optim {
namespace {

// The kernels iterate over a parameter and its companions in memory order, so all need the same dense layout.
bool lies_like(const at::Tensor& companion, const at::Tensor& parameter) {
  return companion.strides() == parameter.strides() || (companion.is_contiguous() && parameter.is_contiguous());
}

bool fits(const at::Tensor& state, const at::Tensor& parameter) {
  return state.defined() && state.device() == parameter.device() && state.scalar_type() == parameter.scalar_type() &&
         lies_like(state, parameter);
}

const at::Tensor& stepped_on(const state::Piece& piece) { return piece.master.defined() ? piece.master : piece.value; }

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
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }
}

bool is_set(const std::optional<at::Tensor>& flag) { return flag && *flag->const_data_ptr<float>() != 0; }

}  // namespace

bool GroupOf::holds(const GroupPlace& place, const void* key) const {
  const auto& groups = optimizer_.param_groups();
  if (place.group >= groups.size() || place.index >= groups[place.group].params().size()) return false;
  return groups[place.group].params()[place.index].unsafeGetTensorImpl() == key;
}

void GroupOf::look_again() {
  places_.clear();
  const auto& groups = optimizer_.param_groups();
  for (size_t group = 0; group < groups.size(); ++group) {
    for (size_t index = 0; index < groups[group].params().size(); ++index) {
      places_.emplace(groups[group].params()[index].unsafeGetTensorImpl(), GroupPlace{group, index});
    }
  }
}

size_t GroupOf::operator()(const state::Piece& piece) {
  const auto& groups = optimizer_.param_groups();
  while (next_.group < groups.size() && next_.index == groups[next_.group].params().size()) next_ = {next_.group + 1};
  if (next_.group >= groups.size()) next_ = {};
  GroupPlace place = next_;
  if (!holds(place, piece.key)) {
    auto found = places_.find(piece.key);
    if (found == places_.end() || !holds(found->second, piece.key)) {
      look_again();
      found = places_.find(piece.key);
    }
    if (found == places_.end()) {
      base::fail(
          ErrorKind::usage, {}, "optimizer.step",
          "{} is none of the optimizer's {} parameters; give the optimizer the parameter before it is stepped on",
          piece.name.empty() ? "a piece" : piece.name, places_.size());
    }
    place = found->second;
  }
  next_ = {place.group, place.index + 1};
  return place.group;
}

// CPU and CUDA have the kernels, and some of LibTorch's other devices do.
bool StepOnPieces::has_kernel(const at::Tensor& parameter) const {
  if (kernel_ == nullptr || parameter.is_cpu() || parameter.is_cuda()) return true;
  auto& dispatcher = c10::Dispatcher::singleton();
  const auto schema = dispatcher.findSchemaOrThrow(kernel_, "");
  const auto key = c10::computeDispatchKey(std::nullopt, parameter.layout(), parameter.device());
  return schema.hasKernelForDispatchKey(key) || dispatcher.hasBackendFallbackForDispatchKey(key);
}

bool StepOnPieces::knows(const state::Piece& piece) const {
  const at::Tensor& parameter = stepped_on(piece);
  const at::Tensor& gradient = piece.gradient;
  return gradient.layout() == at::kStrided && parameter.layout() == at::kStrided && parameter.is_floating_point() &&
         !gradient.is_neg() && !parameter.is_neg() &&  // memory has the negated values
         gradient.scalar_type() == piece.value.scalar_type() && gradient.device() == parameter.device() &&
         has_kernel(parameter) && parameter.is_non_overlapping_and_dense() && lies_like(gradient, parameter);
}

// The optimizer's parameters as pieces. The list is kept, so that repeated steps do not allocate.
std::span<const state::Piece> StepOnPieces::all() {
  size_t count = 0;
  for (const auto& group : optimizer_.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (count == all_.size()) all_.emplace_back();
      state::Piece& piece = all_[count++];
      if (piece.key != parameter.unsafeGetTensorImpl()) piece = state::whole_piece({}, parameter);
      piece.gradient = parameter.grad();
    }
  }
  all_.resize(count);
  return all_;
}

bool StepOnPieces::step(const StepScale& scale) {
  // The list must not keep gradients alive.
  struct Forget {
    std::vector<state::Piece>& pieces;
    ~Forget() {
      for (state::Piece& piece : pieces) piece.gradient.reset();
    }
  } forget{all_};
  return step(all(), scale);
}

bool StepOnPieces::step(std::span<const state::Piece> pieces, const StepScale& scale) {
  for (const state::Piece& piece : pieces) {
    if (piece.gradient.defined() && !knows(piece)) return false;
  }
  const at::NoGradGuard no_grad;
  const ClearedAtEnd cleared{calls_};
  for (const state::Piece& piece : pieces) {
    if (piece.gradient.defined()) collect({piece, stepped_on(piece), group_of_(piece)});
  }
  calls_.run([&](Call& call) { run(call, on_device(scale, call.device)); });
  return true;
}

Call& StepOnPieces::add(const Stepped& stepped, int64_t step) {
  Call& call = calls_.of(stepped.group, stepped.parameter, step);
  const state::Piece& piece = stepped.piece;
  call.parameters.push_back(stepped.parameter);
  call.gradients.push_back(piece.gradient);
  if (!piece.master.defined()) return call;
  call.gradients.back() = piece.gradient.to(piece.master.scalar_type());
  call.masters.push_back(piece.master);
  call.values.push_back(piece.value);
  return call;
}

void StepOnPieces::run(Call& call, const StepScale& scale) {
  if (call.device.is_cpu() && is_set(scale.skip)) return;
  if (recording_) read_from_device(call);
  update(call, scale);
  if (!call.masters.empty()) at::_foreach_copy_(call.values, call.masters);
  mark_changed(call.parameters);  // no graph saves masters, but a parameter may have none
  mark_changed(call.values);
  keep(call, scale);
  if (recording_) note_recorded(call);
}

// The scalars belong to the capture and are written before each replay, not now, because device work is being
// captured.
void StepOnPieces::read_from_device(Call& call) {
  const auto found = std::find_if(scalars_.begin(), scalars_.end(),
                                  [&](const Scalars& each) { return each.memory.device() == call.device; });
  if (found == scalars_.end() || found->taken + 2 > found->memory.numel()) {
    base::fail(
        ErrorKind::usage, {}, "optimizer.step",
        "{} kernel calls of the optimizer are recorded on {}, at most {} can be; step on it fewer times in what is "
        "recorded",
        found == scalars_.end() ? 1 : found->taken / 2 + 1, call.device.str(),
        found == scalars_.end() ? 0 : found->memory.numel() / 2);
  }
  call.rate = found->memory.select(0, found->taken++);
  call.step_tensor = found->memory.select(0, found->taken++);
}

void StepOnPieces::note_recorded(const Call& call) {
  recording_->add({.rate = [this, group = call.group] { return optimizer_.param_groups()[group].options().get_lr(); },
                   .count = [this, states = call.states](int64_t steps) { return add_to_counts(states, steps); },
                   .step = call.step,
                   .rate_on_device = call.rate,
                   .count_on_device = call.step_tensor,
                   .held = held_by(call)});
}

// Allocates the scalars before the capture: the capture's own memory is reused within each replay, which would
// overwrite scalars that are written before it.
void StepOnPieces::begin_recording() {
  recording_.emplace();
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

RecordedNumbers StepOnPieces::end_recording() {
  scalars_.clear();
  auto numbers = std::exchange(recording_, std::nullopt).value_or(RecordedNumbers());
  numbers.ended();
  return numbers;
}

at::Tensor StepOnPieces::laid(const Stepped& stepped, const at::Tensor& state) const {
  if (fits(state, stepped.parameter)) return state;
  if (recording()) refuse_to_record_first(stepped);
  if (!state.defined()) return at::zeros_like(stepped.parameter);
  return at::empty_like(stepped.parameter).copy_(state);
}

void StepOnPieces::refuse_to_record_first(const Stepped& stepped) {
  refuse_to_record_first(stepped.piece.name, stepped.parameter.sizes());
}

void StepOnPieces::refuse_to_record_first(const std::string& name, at::IntArrayRef sizes) {
  base::fail(
      ErrorKind::usage, {}, "optimizer.step",
      "{} of shape [{}] has its first gradient in a step that is recorded, must have had one before: its averages "
      "would begin anew in each replay",
      name.empty() ? "a parameter" : "parameter " + name, c10::Join(", ", sizes));
}

void StepOnPieces::add_to(Fingerprint& fingerprint) {
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

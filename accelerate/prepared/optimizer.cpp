// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/optimizer.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <unordered_set>

#include "accelerate/base/log.hpp"
#include "accelerate/comm/user_call.hpp"
#include "accelerate/device/out_of_memory.hpp"
#include "accelerate/optim/parameter_groups.hpp"
#include "accelerate/precision/autocast.hpp"
#include "accelerate/prepared/known_tensors.hpp"
#include "accelerate/prepared/loss_scaling.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/written_tensors.hpp"

namespace accelerate::prepared {
namespace {

at::Tensor first_parameter(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    if (!group.params().empty()) return group.params().front();
  }
  return {};
}

/// Compares by identity, so that a replaced parameter is detected.
bool has_these_parameters(const torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& tensors) {
  size_t count = 0;
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      if (count == tensors.size() || !parameter.is_same(tensors[count])) return false;
      ++count;
    }
  }
  return count == tensors.size();
}

/// Like Optimizer::zero_grad(), which detaches a gradient before it drops it and therefore allocates.
void zero_stock(torch::optim::Optimizer& optimizer, bool set_to_none) {
  if (!set_to_none) return optimizer.zero_grad(false);
  for (auto& group : optimizer.param_groups()) {
    for (auto& parameter : group.params()) parameter.mutable_grad().reset();
  }
}

}  // namespace

OptimizerCore::OptimizerCore(Shared& shared, torch::optim::Optimizer& optimizer)
    : Entry(entry_kind, &optimizer),
      shared_(&shared),
      optimizer_(optimizer),
      type_(typeid(optimizer)),
      first_parameter_(first_parameter(optimizer)),
      fused_(optim::FusedStep::recognise(optimizer)),
      calls_closure_once_(fused_ != nullptr) {
  if (!shared.fused_optimizer) fused_.reset();
  optim::check_groups(optimizer, shared.place, "prepare");
}

bool OptimizerCore::is(const torch::optim::Optimizer& optimizer) const {
  return &optimizer == &optimizer_ && typeid(optimizer) == type_ &&
         first_parameter(optimizer).is_same(first_parameter_);
}

at::Tensor OptimizerCore::step(const torch::optim::Optimizer::LossClosure& closure) {
  if (!shared_->window.ends) {
    warn_of_second_step();
    return {};
  }
  at::Tensor loss = device::naming_out_of_memory(
      shared_->place, "optimizer.step",
      [&] {
        at::Tensor of_step = step_now(closure);
        precision::drop_cached_casts();  // casts of the old weights, if the user's autocast region is open
        shared_->window.scope.stepped();
        if (index() == 0) ++shared_->steps;
        // On the CPU the flag is available at once, so later reads need not wait. A skipped step is subtracted from the
        // count.
        if (shared_->scaling && shared_->device.is_cpu()) shared_->scaling->was_skipped(*this);
        return of_step;
      },
      [&] { return known_tensors(*shared_); });
  check_synchronized();
  return loss;
}

void OptimizerCore::check_synchronized() {
  const int64_t every = shared_->check_synchronized_every;
  // In a join or in local SGD, each rank makes its own number of steps.
  const bool alike = std::ranges::all_of(engines_, [](const auto* engine) { return engine->steps_alike(); });
  if (every == 0 || !alike || ++steps_ % every != 0) return;
  for (const ModelCore& model : shared_->registry.of<ModelCore>()) {
    const bool ours = std::find(engines_.begin(), engines_.end(), model.engine()) != engines_.end();
    if (ours && model.engine()->steps_alike()) {
      model.check_synchronized(fmt::format("after {} optimizer steps", steps_));
    }
  }
}

at::Tensor OptimizerCore::step_now(const torch::optim::Optimizer::LossClosure& closure) {
  shared_->watch.begin_step(*shared_);
  if (shared_->scaling) return step_scaled(closure);
  spend();
  if (!calls_closure_once_ && closure) {
    refuse_closure_on_masters();
    const at::Tensor loss = optimizer_.step([&] {
      const at::Tensor of_closure = closure();
      check_reduced();
      return mean_over_ranks(of_closure);
    });
    shared_->watch.stepped();
    return loss;
  }
  if (!calls_closure_once_) {
    check_reduced();
    return update();
  }
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode grad(true);
    loss = closure();
  }
  check_reduced();
  update();
  return loss;
}

at::Tensor OptimizerCore::update() {
  if (fused_ && step_fused()) {
    shared_->watch.stepped();
    return {};
  }
  take_back_cancelled();  // the stock step reads the counts
  OnMasters masters(optimizer_, shared_->masters);
  at::Tensor loss = optimizer_.step();
  masters.write_back();
  shared_->watch.stepped();
  return loss;
}

bool OptimizerCore::step_fused() {
  if (shared_->masters.empty()) return fused_->step();
  auto pieces = this->pieces();
  shared_->masters.lend(pieces);
  if (!fused_->step(pieces)) return false;
  shared_->masters.stepped_on(pieces);
  return true;
}

std::vector<state::Piece> OptimizerCore::pieces() {
  const auto ours = optim::keys_of(all_);
  std::vector<state::Piece> pieces;
  for (gradient::Engine* engine : engines_) {
    for (state::Piece& piece : engine->pieces()) {
      if (ours.contains(piece.key)) pieces.push_back(std::move(piece));
    }
  }
  for (const at::Tensor& parameter : unmanaged_) pieces.push_back(state::whole_piece({}, parameter));
  return pieces;
}

void OptimizerCore::refuse_closure_on_masters() const {
  if (shared_->masters.empty()) return;
  base::fail(
      ErrorKind::usage, shared_->place, "optimizer.step",
      "this optimizer calls its closure itself, while its parameters are their float32 master weights; step without "
      "a closure, or keep the parameters in float32");
}

at::Tensor OptimizerCore::step_scaled(const torch::optim::Optimizer::LossClosure& closure) {
  if (closure && !calls_closure_once_) {
    base::fail(ErrorKind::usage, shared_->place, "optimizer.step",
               "this optimizer calls its closure itself, maybe several times, which loss scaling cannot follow; step "
               "without a closure, or use bf16 instead of fp16");
  }
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode grad(true);
    loss = closure();
  }
  check_reduced();
  shared_->scaling->move_what_is_owed();  // a schedule may set the rate of this step
  if (!has_gradient() && !shared_->scaling->ranks_differ()) return loss;
  const at::Tensor skip = shared_->scaling->skip_flag(*this);
  update_unless(skip);
  spend();
  shared_->scaling->step_done(*this, skip);
  return loss;
}

void OptimizerCore::update_unless(const at::Tensor& skip) {
  shared_->watch.stepped();
  const bool one_device =
      std::ranges::all_of(all_, [&](const auto& parameter) { return parameter.device() == skip.device(); });
  if (fused_ && one_device && !skip.is_cpu() && fused_->step({.scale = std::nullopt, .skip = skip})) return;
  if (skip.item<float>() != 0) return;  // the host waits for the device, because the optimizer's own step takes no flag
  update();
}

bool OptimizerCore::step_was_skipped() { return shared_->scaling && shared_->scaling->was_skipped(*this); }

std::optional<at::Tensor> OptimizerCore::skip_flag() const {
  const at::Tensor flag = scaled_.last_flag();
  return flag.defined() ? std::optional(flag) : std::nullopt;
}

void OptimizerCore::take_back_cancelled() {
  if (fused_) fused_->take_back_cancelled();
}

void OptimizerCore::move_what_is_owed() {
  if (shared_->scaling) shared_->scaling->move_what_is_owed();
}

bool OptimizerCore::has_gradient() const {
  return std::ranges::any_of(optimizer_.param_groups(), [](const auto& group) {
    return std::ranges::any_of(group.params(), [](const auto& parameter) { return parameter.grad().defined(); });
  });
}

bool OptimizerCore::has_any_of(const std::unordered_set<const void*>& parameters) const {
  return std::ranges::any_of(optimizer_.param_groups(), [&](const auto& group) {
    return std::ranges::any_of(
        group.params(), [&](const auto& parameter) { return parameters.contains(parameter.unsafeGetTensorImpl()); });
  });
}

std::vector<at::Tensor> OptimizerCore::flat_gradients() {
  find_engines();
  return prepared::flat_gradients(shared_->registry.list<ModelCore>(), all_);
}

void OptimizerCore::zero_grad(bool set_to_none) {
  const Window& window = shared_->window;
  const bool keeps = !window.ends || (window.is_last_of_several() && !reached_);  // last micro-batch, no backward yet
  if (keeps && !spent_) return;
  shared_->watch.begin_zero_grad(*shared_, *this);
  drop_gradients(set_to_none);
}

OptimizerCore::Imprints OptimizerCore::imprint_of_gradients() const {
  Imprints all;
  for (const auto& group : optimizer_.param_groups()) {
    for (const auto& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      all.emplace_back(gradient.unsafeGetTensorImpl(), version_counter(gradient));
    }
  }
  return all;
}

void OptimizerCore::drop_gradients(bool set_to_none) {
  spent_ = false;
  shared_->watch.release(*this);
  find_engines();
  zero_now(set_to_none);
  if (shared_->scaling) shared_->scaling->zeroed(*this);
}

void OptimizerCore::zero_now(bool set_to_none) {
  if (engines_.empty()) return zero_stock(optimizer_, set_to_none);
  for (gradient::Engine* engine : engines_) engine->zero(all_, set_to_none);
  zero_plain(unmanaged_, set_to_none);
}

void zero_plain(const std::vector<at::Tensor>& parameters, bool set_to_none) {
  const at::NoGradGuard no_grad;
  for (const auto& parameter : parameters) {
    if (set_to_none) {
      parameter.mutable_grad().reset();
    } else if (parameter.grad().defined()) {
      parameter.mutable_grad().zero_();
    }
  }
}

void OptimizerCore::spend() {
  spent_ = true;
  ++times_spent_;
}

void OptimizerCore::find_engines() {
  if (seen_registry_ == shared_->registry.version() && has_these_parameters(optimizer_, all_)) return;
  optim::check_groups(optimizer_, shared_->place, "optimizer.step");
  engines_.clear();
  all_ = optim::parameters_of(optimizer_);
  unmanaged_ = all_;
  for (ModelCore& model : shared_->registry.of<ModelCore>()) {
    gradient::Engine* engine = model.engine();
    if (engine == nullptr) continue;
    const auto managed = [&](const at::Tensor& parameter) { return engine->manages(parameter); };
    if (std::any_of(all_.begin(), all_.end(), managed)) engines_.push_back(engine);
    std::erase_if(unmanaged_, managed);
  }
  const auto keys = optim::keys_of(all_);
  shares_parameters_ = std::ranges::any_of(shared_->registry.of<OptimizerCore>(), [&](const OptimizerCore& other) {
    return &other != this && other.has_any_of(keys);
  });
  seen_registry_ = shared_->registry.version();
  foreign_told_ = false;
  ++found_;
}

// All ranks must get the same loss, because an optimizer may choose further calls or the step length by it.
at::Tensor OptimizerCore::mean_over_ranks(const at::Tensor& loss) const {
  const auto alike = [](const gradient::Engine* engine) { return engine->steps_alike(); };
  if (engines_.empty() || !std::ranges::all_of(engines_, alike)) return loss;
  if (shared_->group.size() == 1 || !loss.defined() || loss.numel() != 1) return loss;
  return comm::in_user_call("optimizer.step", "the closure's losses are not averaged", shared_->place,
                            [&] { return shared_->group.all_gather(loss.detach().reshape({1})).mean(); });
}

void OptimizerCore::check_reduced() {
  find_engines();
  warn_of_odd_step();
  tell_of_foreign_parameters();
  check_divided(*shared_);
  shared_->group.check("optimizer.step");
  for (gradient::Engine* engine : engines_) engine->before_step();
  if (shared_->group.size() == 1) return;
  for (const auto& parameter : unmanaged_) {
    if (parameter.grad().defined()) {
      base::fail(ErrorKind::usage, shared_->place, "optimizer.step",
                 "a parameter of shape [{}] has a gradient that no prepared model reduces over the {} ranks; give its "
                 "module to prepare() after requires_grad is set, again if it changed since",
                 c10::Join(", ", parameter.sizes()), shared_->group.size());
    }
  }
}

}  // namespace accelerate::prepared

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/optimizer.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <iterator>
#include <unordered_set>

#include "accelerate/base/log.hpp"
#include "accelerate/base/version_counter.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/device/out_of_memory_error.hpp"
#include "accelerate/optim/parameter_groups.hpp"
#include "accelerate/precision/autocast.hpp"
#include "accelerate/prepared/loss_scaling.hpp"
#include "accelerate/prepared/memory_inventory.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/sharding_support.hpp"
#include "accelerate/sharding/fully_sharded_parameters.hpp"

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

OptimizerCore::OptimizerCore(AcceleratorState& shared, torch::optim::Optimizer& optimizer)
    : Entry(kEntryKind, &optimizer),
      accelerator_state_(&shared),
      optimizer_(optimizer),
      type_(typeid(optimizer)),
      first_parameter_(first_parameter(optimizer)),
      fused_(optim::FusedStep::for_optimizer(optimizer)),
      calls_closure_once_(fused_ != nullptr) {
  check_shardable(shared, optimizer);
  if (!shared.fused_optimizer) fused_.reset();
  optim::check_groups(optimizer, shared.place, "prepare");
}

bool OptimizerCore::is(const torch::optim::Optimizer& optimizer) const {
  return &optimizer == &optimizer_ && typeid(optimizer) == type_ &&
         first_parameter(optimizer).is_same(first_parameter_);
}

at::Tensor OptimizerCore::step(const torch::optim::Optimizer::LossClosure& closure) {
  if (!accelerator_state_->window.ends) {
    warn_of_second_step();
    return {};
  }
  at::Tensor loss = device::with_out_of_memory_report(
      accelerator_state_->place, "optimizer.step",
      [&] {
        at::Tensor of_step = step_now(closure);
        precision::drop_cached_casts();  // casts of the old weights, if the user's autocast region is open
        accelerator_state_->window.scope.record_step();
        if (index() == 0) ++accelerator_state_->steps;
        // On the CPU the flag is available at once, so later reads need not wait. A skipped step is subtracted from the
        // count.
        if (accelerator_state_->scaling && accelerator_state_->device.is_cpu())
          accelerator_state_->scaling->was_skipped(*this);
        return of_step;
      },
      [&] { return memory_inventory(*accelerator_state_); });
  check_synchronized();
  return loss;
}

void OptimizerCore::check_synchronized() {
  const int64_t every = accelerator_state_->check_synchronized_every;
  // In a join or in local SGD, each rank makes its own number of steps.
  const bool in_lockstep = std::ranges::all_of(
      gradient_reducers_, [](const auto* gradient_reducer) { return gradient_reducer->steps_in_lockstep(); });
  if (every == 0 || !in_lockstep || ++steps_ % every != 0) return;
  for (ModelCore& model : accelerator_state_->registry.of<ModelCore>()) {
    const bool is_reduced = std::ranges::find(gradient_reducers_, model.gradient_reducer()) != gradient_reducers_.end();
    const bool is_sharded = std::ranges::find(fully_sharded_, model.fully_sharded()) != fully_sharded_.end();
    const bool is_pipeline = std::ranges::find(pipelines_, &model) != pipelines_.end();
    if (is_sharded || is_pipeline || (is_reduced && model.gradient_reducer()->steps_in_lockstep())) {
      model.check_synchronized(fmt::format("after {} optimizer steps", steps_));
    }
  }
}

at::Tensor OptimizerCore::step_now(const torch::optim::Optimizer::LossClosure& closure) {
  accelerator_state_->watch.begin_step(*accelerator_state_);
  if (accelerator_state_->scaling) return step_scaled(closure);
  spend();
  if (!calls_closure_once_ && closure) {
    throw_closure_with_masters();
    const at::Tensor loss = optimizer_.step([&] {
      const at::Tensor of_closure = closure();
      check_reduced();
      return average_over_ranks(of_closure);
    });
    accelerator_state_->watch.record_step(*this);
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
    accelerator_state_->watch.record_step(*this);
    return {};
  }
  discard_skipped_steps();  // the stock step reads the counts
  MasterWeightScope masters(optimizer_, accelerator_state_->masters);
  at::Tensor loss = optimizer_.step();
  masters.write_back();
  accelerator_state_->watch.record_step(*this);
  return loss;
}

bool OptimizerCore::step_fused() {
  if (!sharded_.empty()) {
    step_sharded({});
    return true;
  }
  if (accelerator_state_->masters.empty()) return fused_->step();
  auto parameter_shards = this->parameter_shards();
  accelerator_state_->masters.attach_masters(parameter_shards);
  if (!fused_->step(parameter_shards)) return false;
  accelerator_state_->masters.mark_stepped(parameter_shards);
  return true;
}

void OptimizerCore::step_sharded(const optim::StepScale& scale) {
  keep_state_ranges();
  const auto ours = optim::keys_of(all_);
  for (const sharding::FullyShardedParameters* model : fully_sharded_) model->warn_about_old_gradients(ours);
  std::vector<state::ParameterShard> owned;
  for (sharding::ParameterSharding* model : sharded_) {
    auto shards = model->shards(ours);
    std::move(shards.begin(), shards.end(), std::back_inserter(owned));
  }
  for (const at::Tensor& parameter : unmanaged_) {
    if (sharding_of(parameter) == nullptr) owned.push_back(state::whole_parameter({}, parameter));
  }
  const bool stepped = fused_->step(owned, scale);
  TORCH_INTERNAL_ASSERT(stepped, "shards() returns only parts on which the fused step works");
  for (sharding::ParameterSharding* model : sharded_) model->after_step(ours);
}

bool OptimizerCore::keep_state_ranges() {
  find_gradient_reducers();
  if (sharded_.empty()) return false;
  optim::keep_state_ranges(
      optimizer_, [this](const at::Tensor& parameter) { return state_range_of(parameter); }, accelerator_state_->place);
  return true;
}

const sharding::ParameterSharding* OptimizerCore::sharding_of(const at::Tensor& parameter) const {
  for (const sharding::ParameterSharding* model : sharded_) {
    if (model->manages(parameter.unsafeGetTensorImpl())) return model;
  }
  return nullptr;
}

std::optional<optim::StateRange> OptimizerCore::state_range_of(const at::Tensor& parameter) const {
  const sharding::ParameterSharding* model = sharding_of(parameter);
  if (model == nullptr) return std::nullopt;
  const auto range = model->range_of(parameter.unsafeGetTensorImpl());
  return optim::StateRange{range->begin, range->end, model->part_device(parameter)};
}

std::vector<state::ParameterShard> OptimizerCore::parameter_shards() {
  const auto ours = optim::keys_of(all_);
  std::vector<state::ParameterShard> parameter_shards;
  for (gradient::GradientReducer* gradient_reducer : gradient_reducers_) {
    for (state::ParameterShard& param_shard : gradient_reducer->parameter_shards()) {
      if (ours.contains(param_shard.key)) parameter_shards.push_back(std::move(param_shard));
    }
  }
  for (const at::Tensor& parameter : unmanaged_) parameter_shards.push_back(state::whole_parameter({}, parameter));
  return parameter_shards;
}

void OptimizerCore::throw_closure_with_masters() const {
  if (accelerator_state_->masters.empty()) return;
  base::fail(
      ErrorKind::usage, accelerator_state_->place, "optimizer.step",
      "this optimizer calls its closure itself, while its parameters are their float32 master weights; step without "
      "a closure, or keep the parameters in float32");
}

at::Tensor OptimizerCore::step_scaled(const torch::optim::Optimizer::LossClosure& closure) {
  if (closure && !calls_closure_once_) {
    base::fail(ErrorKind::usage, accelerator_state_->place, "optimizer.step",
               "this optimizer calls its closure itself, maybe several times, which loss scaling cannot follow; step "
               "without a closure, or use bf16 instead of fp16");
  }
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode grad(true);
    loss = closure();
  }
  check_reduced();
  accelerator_state_->scaling->run_deferred_schedules();  // a schedule may set the rate of this step
  if (!has_gradient_on_any_stage() && !accelerator_state_->scaling->ranks_differ()) return loss;
  const at::Tensor skip = accelerator_state_->scaling->skip_flag(*this);
  update_unless(skip);
  spend();
  accelerator_state_->scaling->step_done(*this, skip);
  return loss;
}

void OptimizerCore::update_unless(const at::Tensor& skip) {
  accelerator_state_->watch.record_step(*this);
  const bool one_device = std::ranges::all_of(all_, [&](const at::Tensor& parameter) {
    const sharding::ParameterSharding* sharded = sharding_of(parameter);
    return (sharded == nullptr ? parameter.device() : sharded->part_device(parameter)) == skip.device();
  });
  const optim::StepScale unless_skipped{.scale = std::nullopt, .skip = skip};
  if (fused_ && one_device && !skip.is_cpu()) {
    if (!sharded_.empty()) return step_sharded(unless_skipped);
    if (fused_->step(unless_skipped)) return;
  }
  if (skip.item<float>() != 0) return;  // the host waits for the device, because the optimizer's own step takes no flag
  update();
}

bool OptimizerCore::step_was_skipped() {
  return accelerator_state_->scaling && accelerator_state_->scaling->was_skipped(*this);
}

std::optional<at::Tensor> OptimizerCore::skip_flag() const {
  const at::Tensor flag = scaled_.last_flag();
  return flag.defined() ? std::optional(flag) : std::nullopt;
}

void OptimizerCore::discard_skipped_steps() {
  if (fused_) fused_->discard_skipped_steps();
}

void OptimizerCore::run_deferred_schedules() {
  if (accelerator_state_->scaling) accelerator_state_->scaling->run_deferred_schedules();
}

bool OptimizerCore::has_gradient() const {
  const auto is_reached = [&](const sharding::FullyShardedParameters* model) {
    return model->has_gradient(optim::keys_of(all_));
  };
  if (std::ranges::any_of(fully_sharded_, is_reached)) return true;
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
  find_gradient_reducers();
  return prepared::flat_gradients(accelerator_state_->registry.list<ModelCore>(), all_);
}

void OptimizerCore::zero_grad(bool set_to_none) {
  const AccumulationState& window = accelerator_state_->window;
  const bool keeps = !window.ends || (window.is_last_of_several() && !reached_);  // last micro-batch, no backward yet
  if (keeps && !step_consumed_) return;
  accelerator_state_->watch.begin_zero_grad(*accelerator_state_, *this);
  drop_gradients(set_to_none);
}

OptimizerCore::WriteStamps OptimizerCore::write_stamp_of_gradients() const {
  WriteStamps all;
  for (const sharding::FullyShardedParameters* model : fully_sharded_)
    all.emplace_back(model, model->arrivals(optim::keys_of(all_)));
  for (const auto& group : optimizer_.param_groups()) {
    for (const auto& parameter : group.params()) {
      const at::Tensor& gradient = parameter.grad();
      all.emplace_back(gradient.unsafeGetTensorImpl(), base::version_of(gradient));
    }
  }
  return all;
}

void OptimizerCore::drop_gradients(bool set_to_none) {
  step_consumed_ = false;
  accelerator_state_->watch.release(*this);
  find_gradient_reducers();
  zero_now(set_to_none);
  if (accelerator_state_->scaling) accelerator_state_->scaling->zeroed(*this);
}

void OptimizerCore::zero_now(bool set_to_none) {
  stages_have_gradient_ = false;
  if (gradient_reducers_.empty() && fully_sharded_.empty() && pipelines_.empty())
    return zero_stock(optimizer_, set_to_none);
  for (gradient::GradientReducer* gradient_reducer : gradient_reducers_) gradient_reducer->zero(all_, set_to_none);
  for (sharding::FullyShardedParameters* model : fully_sharded_) model->zero(optim::keys_of(all_), set_to_none);
  zero_plain(unmanaged_, set_to_none);
  for (ModelCore* pipeline : pipelines_) pipeline->gradients_zeroed(unmanaged_);
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
  step_consumed_ = true;
  ++times_spent_;
}

void OptimizerCore::find_gradient_reducers() {
  if (seen_registry_ == accelerator_state_->registry.version() && has_these_parameters(optimizer_, all_)) return;
  optim::check_groups(optimizer_, accelerator_state_->place, "optimizer.step");
  gradient_reducers_.clear();
  sharded_.clear();
  fully_sharded_.clear();
  all_ = optim::parameters_of(optimizer_);
  unmanaged_ = all_;
  for (ModelCore& model : accelerator_state_->registry.of<ModelCore>()) {
    const auto managed = [&](const at::Tensor& parameter) { return model.manages(parameter); };
    if (std::any_of(all_.begin(), all_.end(), managed)) {
      if (model.gradient_reducer() != nullptr) gradient_reducers_.push_back(model.gradient_reducer());
      if (model.parameter_sharding() != nullptr) sharded_.push_back(model.parameter_sharding());
      if (model.fully_sharded() != nullptr) fully_sharded_.push_back(model.fully_sharded());
    }
    std::erase_if(unmanaged_, managed);
  }
  find_pipelines();
  const auto keys = optim::keys_of(all_);
  shares_parameters_ =
      std::ranges::any_of(accelerator_state_->registry.of<OptimizerCore>(),
                          [&](const OptimizerCore& other) { return &other != this && other.has_any_of(keys); });
  seen_registry_ = accelerator_state_->registry.version();
  warned_foreign_ = false;
  ++found_;
}

void OptimizerCore::find_pipelines() {
  pipelines_.clear();
  unreduced_ = unmanaged_;
  for (ModelCore& model : accelerator_state_->registry.of<ModelCore>()) {
    if (!model.options().pipeline || model.options().evaluation_mode || !model.has_any_of(all_)) continue;
    pipelines_.push_back(&model);
    if (model.fully_sharded() != nullptr) continue;  // reduces only the parameters that it manages
    // With shard_optim_op each rank steps on its part, while the model averages whole gradients itself.
    if (model.parameter_sharding() != nullptr) sharded_.push_back(model.parameter_sharding());
    std::erase_if(unreduced_, [&](const at::Tensor& parameter) { return model.has_any_of({parameter}); });
  }
  const bool is_divided = accelerator_state_->mesh.pipeline.size() > 1 || accelerator_state_->group.size() > 1;
  if (pipelines_.empty() || !is_divided || dynamic_cast<torch::optim::LBFGS*>(&optimizer_) == nullptr) return;
  base::fail(
      ErrorKind::usage, accelerator_state_->place, "optimizer.step",
      "torch::optim::LBFGS combines all elements of the parameters, and this rank has only the parameters of its "
      "own Pipeline stages; use an optimizer that steps on each element");
}

// All ranks must get the same loss, because an optimizer may choose further calls or the step length by it.
at::Tensor OptimizerCore::average_over_ranks(const at::Tensor& loss) const {
  const auto in_lockstep = [](const gradient::GradientReducer* gradient_reducer) {
    return gradient_reducer->steps_in_lockstep();
  };
  const bool is_reduced = !gradient_reducers_.empty() || !pipelines_.empty();
  if (!is_reduced || !std::ranges::all_of(gradient_reducers_, in_lockstep)) return loss;
  if (accelerator_state_->group.size() == 1 || !loss.defined() || loss.numel() != 1) return loss;
  return comm::with_operation_context(
      "optimizer.step", "the closure's losses are not averaged", accelerator_state_->place,
      [&] { return accelerator_state_->group.all_gather(loss.detach().reshape({1})).mean(); });
}

void OptimizerCore::check_reduced() {
  find_gradient_reducers();
  warn_about_step_inside_window();
  warn_about_foreign_parameters();
  check_divided(*accelerator_state_);
  accelerator_state_->group.check("optimizer.step");
  for (gradient::GradientReducer* gradient_reducer : gradient_reducers_) gradient_reducer->before_step();
  for (sharding::FullyShardedParameters* model : fully_sharded_) model->before_step();
  if (accelerator_state_->group.size() == 1) return;
  for (const ModelCore* pipeline : pipelines_) pipeline->check_averaged();
  for (const auto& parameter : unreduced_) {
    if (parameter.grad().defined()) {
      base::fail(ErrorKind::usage, accelerator_state_->place, "optimizer.step",
                 "a parameter of shape [{}] has a gradient that no prepared model reduces over the {} ranks; give its "
                 "module to prepare() after requires_grad is set, again if it changed since",
                 c10::Join(", ", parameter.sizes()), accelerator_state_->group.size());
    }
  }
}

}  // namespace accelerate::prepared

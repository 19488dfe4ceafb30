// SPDX-License-Identifier: Apache-2.0
#include "accelerate/pipeline/engine.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <fmt/format.h>

#include <exception>
#include <string>

#include "accelerate/base/exception_text.hpp"
#include "accelerate/device/out_of_memory_error.hpp"
#include "accelerate/pipeline/split.hpp"

namespace accelerate::pipeline {
namespace {

std::vector<at::Tensor> divide(const at::Tensor& batch, int64_t micro_batches, std::optional<at::Device> device) {
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (const int64_t rows : micro_batch_rows(batch.size(0), micro_batches)) {
    const at::Tensor part = batch.narrow(0, first, rows);
    parts.push_back(device ? part.to(*device) : part);
    first += rows;
  }
  return parts;
}

}  // namespace

Engine::Engine(Setup setup, std::map<int64_t, Stage> stages, std::unique_ptr<Transport> transport)
    : setup_(std::move(setup)), stages_(std::move(stages)), transport_(std::move(transport)) {}

at::Tensor Engine::train_step(const at::Tensor& input, const at::Tensor& target, const Loss& loss,
                              const LossSeed& seed) {
  const at::AutoGradMode with_gradients(true);
  Step step{.loss = &loss, .seed = &seed};
  begin(step, true, input);
  if (has_stage(last_stage())) split_target(step, target);
  run(step);
  return step.mean_loss;
}

at::Tensor Engine::forward(const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  Step step;
  begin(step, false, input);
  run(step);
  return step.outputs.empty() ? at::Tensor() : at::cat(step.outputs);
}

void Engine::begin(Step& step, bool training, const at::Tensor& input) {
  StepHeader own{.training = training};
  for (auto& [index, stage] : stages_) {
    stage.release_all();  // an earlier step may have ended with an exception
    if (own.first_trainable == StepHeader::kNoStage && stage.is_trainable()) own.first_trainable = index;
  }
  if (has_stage(0)) {
    if (!input.defined() || input.dim() == 0) {
      base::fail(ErrorKind::usage, setup_.place, call(training), "the input is {}, must be a tensor [rows, ...]",
                 input.defined() ? "a number" : "undefined");
    }
    step.inputs = divide(input, setup_.micro_batches, stages_.at(0).device());
    own.micro_batches = static_cast<int64_t>(step.inputs.size());
    own.rows = input.size(0);
    if (input.requires_grad()) own.first_trainable = -1;
  }
  step.header = transport_->begin(own, input);
  if (step_check_) step_check_(step.header.micro_batches);
}

void Engine::split_target(Step& step, const at::Tensor& target) {
  if (!target.defined() || target.dim() == 0 || target.size(0) != step.header.rows) {
    base::fail(ErrorKind::usage, setup_.place, call(true), "the target has {} rows, the input has {}",
               target.defined() && target.dim() > 0 ? std::to_string(target.size(0)) : "no", step.header.rows);
  }
  step.targets = divide(target, step.header.micro_batches, stages_.at(last_stage()).device());
}

const std::vector<Action>& Engine::actions_for(const StepHeader& header) {
  const auto [entry, is_new] = actions_.try_emplace({header.training, header.micro_batches});
  if (is_new) {
    const Plan plan = header.training
                          ? plan_step(setup_.schedule, setup_.ranks, header.micro_batches, setup_.stages_per_rank)
                          : plan_forward(setup_.ranks, header.micro_batches, setup_.stages_per_rank);
    entry->second = setup_.rank ? plan.actions_of(*setup_.rank) : plan.actions;
  }
  return entry->second;
}

void Engine::run(Step& step) {
  for (const Action& action : actions_for(step.header)) execute(action, step);
  transport_->finish();
}

void Engine::execute(const Action& action, Step& step) {
  Stage& stage = stages_.at(action.stage);
  switch (action.kind) {
    case ActionKind::forward:
      return forward(action, step);
    case ActionKind::backward:
      return backward(action, step);
    case ActionKind::receive_activation:
    case ActionKind::receive_gradient:
      return transport_->start_receive(action);
    case ActionKind::send_activation:
      transport_->send(action, stage.output(action.micro_batch));
      if (!step.header.training) stage.release(action.micro_batch);
      return;
    case ActionKind::send_gradient:
      if (const at::Tensor gradient = stage.take_input_gradient(action.micro_batch); gradient.defined()) {
        transport_->send(action, gradient);
      }
      return stage.release(action.micro_batch);
  }
}

void Engine::forward(const Action& action, Step& step) {
  const int64_t i = action.micro_batch;
  const at::Tensor input = action.stage == 0 ? step.inputs.at(static_cast<size_t>(i))
                                             : transport_->take(ActionKind::receive_activation, action.stage, i);
  const bool is_last = action.stage == last_stage(), training = step.header.training;
  const bool needs_gradient = training && transport_->sends_gradient(action.stage, input.scalar_type());
  Stage& stage = stages_.at(action.stage);
  in_stage(action, step, "forward", [&] {
    stage.forward(i, input, needs_gradient,
                  is_last && training ? [&](const at::Tensor& output) { return weighted_loss(output, i, step); }
                                      : Stage::Finish());
  });
  if (!is_last || training) return;
  step.outputs.push_back(stage.output(i));
  stage.release(i);
}

void Engine::backward(const Action& action, Step& step) {
  const bool is_last = action.stage == last_stage();
  at::Tensor gradient;
  if (!is_last) gradient = transport_->take(ActionKind::receive_gradient, action.stage, action.micro_batch);
  Stage& stage = stages_.at(action.stage);
  if (is_last || gradient.defined()) {
    in_stage(action, step, "backward", [&] {
      if (is_last && *step.seed) gradient = (*step.seed)(stage.output(action.micro_batch));
      stage.backward(action.micro_batch, gradient);
    });
  }
  if (action.stage == 0) stage.release(action.micro_batch);
}

at::Tensor Engine::weighted_loss(const at::Tensor& output, int64_t micro_batch, Step& step) const {
  const at::Tensor& target = step.targets.at(static_cast<size_t>(micro_batch));
  const at::Tensor loss = (*step.loss)(output, target);
  if (!loss.defined() || loss.numel() != 1) {
    base::fail(ErrorKind::usage, setup_.place, call(true),
               "the loss function returns {}, must return the mean over the rows as one number",
               loss.defined() ? fmt::format("{} elements", loss.numel()) : "an undefined tensor");
  }
  const double share = static_cast<double>(target.size(0)) / static_cast<double>(step.header.rows);
  const at::Tensor part = loss.detach().to(at::kDouble).reshape({}) * share;
  step.mean_loss = step.mean_loss.defined() ? step.mean_loss + part : part;
  return loss * share;
}

/// Names stage and micro-batch in errors of the user's layers. Errors of transfers name them already.
template <typename Run>
void Engine::in_stage(const Action& action, const Step& step, std::string_view what, const Run& run) const {
  const auto failure = base::capture_exception(run);
  if (!failure) return;
  const auto context = fmt::format("stage {}, micro-batch {}, {}", action.stage, action.micro_batch, what);
  const auto text = [&](const std::string& reason) { return fmt::format("{}: {}", context, reason); };
  try {
    std::rethrow_exception(failure);
  } catch (const Error& error) {
    throw Error(error.kind(), setup_.place, call(step.header.training), text(error.what()), error.missing_ranks());
  } catch (const c10::Error& error) {
    if (device::is_out_of_memory_error(error)) {
      device::fail_out_of_memory(error, setup_.place, fmt::format("{}: {}", call(step.header.training), context));
    }
    throw Error(ErrorKind::usage, setup_.place, call(step.header.training), text(base::exception_summary(failure)));
  } catch (...) {
    throw Error(ErrorKind::usage, setup_.place, call(step.header.training), text(base::exception_summary(failure)));
  }
}

}  // namespace accelerate::pipeline

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/graphed_step.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <exception>
#include <tuple>

#include "accelerate/base/heartbeat.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/base/version_counter.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/precision/autocast.hpp"
#include "accelerate/prepared/loss_scaling.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/optimizer.hpp"
#include "accelerate/prepared/written_tensors.hpp"
#include "accelerate/sharding/parameter_sharding.hpp"

namespace accelerate::prepared {

// Captured values of one optimizer.
struct RecordedOptimizer {
  std::shared_ptr<OptimizerCore> optimizer;
  optim::CapturedScalars numbers;
  std::vector<at::Tensor> flags;  // skip flags of loss scaling
};

namespace {

using Tensors = GraphedStepCore::Tensors;

std::string described(const Tensors& inputs) {
  std::string text;
  for (const at::Tensor& input : inputs) {
    text += fmt::format("[{}] [{}] {} {};", fmt::join(input.sizes().vec(), ","), fmt::join(input.strides().vec(), ","),
                        c10::toString(input.scalar_type()), input.device().str());
  }
  return text;
}

Tensors without_graph(Tensors tensors) {
  for (at::Tensor& tensor : tensors) tensor = tensor.detach();
  return tensors;
}

std::string first_line(const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  const std::string text = c10_error != nullptr ? c10_error->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

// Puts the optimizers into capture mode during its lifetime.
class Recording {
 public:
  explicit Recording(AcceleratorState& shared)
      : accelerator_state_(shared), optimizers_(shared.registry.list<OptimizerCore>()) {
    accelerator_state_.capturing = true;
    try {
      for (const auto& optimizer : optimizers_) {
        optimizer->fused()->begin_capture();
        optimizer->scaled().begin_capture();
      }
    } catch (...) {  // out of memory
      end();
      throw;
    }
  }
  ~Recording() { end(); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  std::vector<RecordedOptimizer> end() {
    std::vector<RecordedOptimizer> all;
    accelerator_state_.capturing = false;
    for (auto& optimizer : std::exchange(optimizers_, {})) {
      auto numbers = optimizer->fused()->end_capture();
      auto flags = optimizer->scaled().end_capture();
      all.push_back({std::move(optimizer), std::move(numbers), std::move(flags)});
    }
    return all;
  }

 private:
  AcceleratorState& accelerator_state_;
  std::vector<std::shared_ptr<OptimizerCore>> optimizers_;
};

// Updates masters from values that were loaded into their parameters. This must not be captured.
void refresh_loaded_values(AcceleratorState& shared, OptimizerCore& optimizer) {
  if (shared.masters.empty()) return;
  for (const auto& group : optimizer.optimizer().param_groups()) std::ignore = shared.masters.of(group.params());
}

// A copy from pinned memory blocks, because the caller may change that memory after the step returns.
void copy_input(const at::Tensor& to, const at::Tensor& input) { to.copy_(input, /*non_blocking=*/!input.is_pinned()); }

std::vector<gradient::GradientReducer*> gradient_reducers_of(AcceleratorState& shared) {
  std::vector<gradient::GradientReducer*> gradient_reducers;
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    if (model.gradient_reducer() != nullptr) gradient_reducers.push_back(model.gradient_reducer());
  }
  return gradient_reducers;
}

void forget_exchanges(AcceleratorState& shared) {
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    if (model.parameter_sharding() != nullptr) model.parameter_sharding()->forget_exchange();
  }
}

}  // namespace

struct GraphedStepCore::Recorded {
  std::unique_ptr<device::Graph> graph;
  Tensors inputs, outputs;
  std::vector<WeakTensor> written;  // parameters and buffers that each replay writes
  std::vector<RecordedOptimizer> optimizers;
  int64_t steps = 0;  // steps of the first optimizer
};

GraphedStepCore::GraphedStepCore(std::shared_ptr<AcceleratorState> shared, const GraphOptions& options,
                                 bool reads_losses)
    : accelerator_state_(std::move(shared)), graph_cache_(options), reads_losses_(reads_losses) {
  check_graph_options(options, accelerator_state_->place);
}

GraphedStepCore::~GraphedStepCore() = default;

// Each reason is something that the host does, or must know, during a step.
std::string GraphedStepCore::plain_run_reason() const {
  if (!failed_.empty()) return failed_;
  const comm::Group& group = accelerator_state_->mesh.world;
  std::string reason =
      graphs_unsupported_reason(accelerator_state_->device, device::find_graphs(accelerator_state_->device.type()),
                                group.backend(), group.size());
  if (!reason.empty()) return reason;
  if (!fully_sharded_models(*accelerator_state_).empty()) {
    return fmt::format("with sharding {} the host decides when the ranks gather",
                       strategy_name(accelerator_state_->sharding));
  }
  const size_t gradient_reducers = gradient_reducers_of(*accelerator_state_).size();
  if (gradient_reducers > 1) {
    return fmt::format("in each backward the {} ranks exchange which of {} models it reached", group.size(),
                       gradient_reducers);
  }
  for (const gradient::GradientReducer* gradient_reducer : gradient_reducers_of(*accelerator_state_)) {
    if (reason = gradient_reducer->reducer().not_capturable_reason(); !reason.empty()) return reason;
  }
  if (accelerator_state_->window.options.steps > 1) {
    return fmt::format("gradient_accumulation_steps is {}; a captured step has one micro-batch",
                       accelerator_state_->window.options.steps);
  }
  if (accelerator_state_->check_synchronized_every > 0) {
    return fmt::format("check_synchronized_every is {}; the host reads the compared values",
                       accelerator_state_->check_synchronized_every);
  }
  if (reads_losses_) return "stop_at_nan_loss is set; the host reads each loss";
  if (accelerator_state_->local_steps > 0) return "local SGD counts steps on the host";
  if (!accelerator_state_->fused_optimizer)
    return "fused_optimizer is false; the optimizers' own steps read numbers of the host";
  for (const OptimizerCore& optimizer : accelerator_state_->registry.of<OptimizerCore>()) {
    if (optimizer.fused() == nullptr || !optimizer.fused()->can_capture())
      return fmt::format("{} steps with numbers of the host; SGD, Adam, AdamW, Adagrad and RMSprop do not",
                         optimizer.name());
  }
  return {};
}

uint64_t GraphedStepCore::made_of() const {
  optim::CaptureFingerprint parts;
  parts.add(static_cast<uint64_t>(accelerator_state_->registry.version()));
  for (const gradient::GradientReducer* gradient_reducer : gradient_reducers_of(*accelerator_state_)) {
    parts.add(static_cast<uint64_t>(gradient_reducer->reducer().memory_version()));
  }
  if (accelerator_state_->scaling) {  // host numbers in the update of the scale
    const precision::GradScalerOptions& options = accelerator_state_->scaling->scaler().options();
    parts.add(options.growth_factor);
    parts.add(options.backoff_factor);
    parts.add(static_cast<uint64_t>(options.growth_interval));
  }
  for (OptimizerCore& optimizer : accelerator_state_->registry.of<OptimizerCore>()) optimizer.fused()->add_to(parts);
  for (const ModelCore& model : accelerator_state_->registry.of<ModelCore>()) {
    for (const auto& parameter : model.parameters()) {
      parts.add(parameter.tensor);
      parts.add(uint64_t{parameter.tensor.requires_grad()});
    }
  }
  return parts.value();
}

Tensors GraphedStepCore::run(const Tensors& inputs, const Step& step) {
  if (const std::string reason = plain_run_reason(); !reason.empty()) return run_plain(inputs, step, reason);
  complete_steps(*accelerator_state_);  // made_of() reads addresses, and a graph does not wait by itself
  const GraphCache::Decision next = graph_cache_.next(described(inputs), made_of());
  if (next.cleared) graphs_.clear();
  if (next.action == GraphCache::Action::record) return record(next.graph, inputs, step);
  if (next.action == GraphCache::Action::replay) return replay(*graphs_.at(next.graph), inputs);
  return run_plain(inputs, step, graph_cache_.not_captured_reason());
}

Tensors GraphedStepCore::run_plain(const Tensors& inputs, const Step& step, const std::string& reason) const {
  if (!reason.empty() && !accelerator_state_->device.is_cpu()) {
    base::log_once(base::LogLevel::warning, accelerator_state_->place,
                   "graphed_step: runs as it is, without graphs: {}", reason);
  }
  return without_graph(step(inputs));
}

std::string GraphedStepCore::not_captured_reason() const {
  const std::string reason = plain_run_reason();
  return reason.empty() ? graph_cache_.not_captured_reason() : reason;
}

Tensors GraphedStepCore::record(size_t graph, const Tensors& inputs, const Step& step) {
  auto recorded = std::make_unique<Recorded>();
  std::string reason = try_capture(*recorded, inputs, step);
  // The captured step has not run on any rank yet. If one rank fails to capture it, no rank uses it.
  if (accelerator_state_->mesh.world.size() > 1) {
    const auto all = at::full({1}, reason.empty() ? 1 : 0, at::kLong);
    comm::with_operation_context("graphed_step", "it is unknown whether all ranks captured the step",
                                 accelerator_state_->place,
                                 [&] { accelerator_state_->mesh.world.all_reduce(all, comm::ReduceOp::min); });
    if (reason.empty() && all.item<int64_t>() == 0) reason = "it could not be captured on another rank";
  }
  if (!reason.empty()) take_back(*recorded);
  for (gradient::GradientReducer* gradient_reducer : gradient_reducers_of(*accelerator_state_))
    gradient_reducer->renew_hooks();  // for eager steps on this stream
  if (!reason.empty()) {
    failed_ = std::move(reason);
    graphs_.clear();
    graph_cache_.forget();
    return run_plain(inputs, step, failed_);
  }
  graphs_.resize(std::max(graphs_.size(), graph + 1));
  graphs_[graph] = std::move(recorded);
  return upload_scalars(*graphs_[graph]);
}

std::string GraphedStepCore::try_capture(Recorded& recorded, const Tensors& inputs, const Step& step) {
  recorded.graph = device::find_graphs(accelerator_state_->device.type())->make();
  for (const at::Tensor& input : inputs) {
    const at::NoGradGuard no_grad;
    recorded.inputs.push_back(at::empty_like(input, input.options().device(accelerator_state_->device)));
    copy_input(recorded.inputs.back(), input);
  }
  precision::drop_cached_casts();
  if (accelerator_state_->scaling) {  // flags cannot be read during capture
    accelerator_state_->scaling->run_deferred_schedules();
    std::ignore = accelerator_state_->scaling->any_was_skipped();
  }
  // Existing gradients are not in the memory of the graph.
  for (OptimizerCore& optimizer : accelerator_state_->registry.of<OptimizerCore>()) {
    optimizer.drop_gradients();
    refresh_loaded_values(*accelerator_state_, optimizer);
  }
  const int64_t steps_before = accelerator_state_->steps;
  Recording capturing(*accelerator_state_);
  const WrittenTensors written(*accelerator_state_);
  std::string reason;
  forget_exchanges(*accelerator_state_);  // this stream waited, and a capture cannot wait for events outside of it
  try {
    device::capture_graph(
        *recorded.graph, accelerator_state_->device,
        [&] {
          for (gradient::GradientReducer* gradient_reducer : gradient_reducers_of(*accelerator_state_))
            gradient_reducer->renew_hooks();
        },
        [&] {
          recorded.outputs = without_graph(step(recorded.inputs));
          complete_steps(*accelerator_state_);
        });
  } catch (const std::exception& error) {
    reason = "it could not be captured: " + first_line(error);
  }
  forget_exchanges(*accelerator_state_);
  if (reason.empty() && accelerator_state_->scaling) reason = accelerator_state_->scaling->scale_not_updated_reason();
  recorded.optimizers = capturing.end();
  recorded.steps = accelerator_state_->steps - steps_before;
  recorded.written = written.list();
  return reason;
}

// Restores the state before the call.
void GraphedStepCore::take_back(const Recorded& recorded) {
  accelerator_state_->steps -= recorded.steps;
  for (const RecordedOptimizer& each : recorded.optimizers) each.numbers.count(-1);
  for (gradient::GradientReducer* gradient_reducer : gradient_reducers_of(*accelerator_state_))
    gradient_reducer->abandon();
  if (accelerator_state_->scaling)
    accelerator_state_->scaling->forget();  // before drop_gradients(), which would update the scale
  for (OptimizerCore& optimizer : accelerator_state_->registry.of<OptimizerCore>()) {
    optimizer.drop_gradients();
    optimizer.scaled().iteration_ended();
  }
}

Tensors GraphedStepCore::replay(const Recorded& recorded, const Tensors& inputs) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < inputs.size(); ++i) copy_input(recorded.inputs[i], inputs[i]);
  accelerator_state_->mesh.world.check("graphed_step");
  accelerator_state_->watch.release_all();
  if (accelerator_state_->scaling)
    accelerator_state_->scaling->run_deferred_schedules();  // a scheduler may set the learning rate of this step
  for (const RecordedOptimizer& each : recorded.optimizers) {
    each.numbers.count(1);
    refresh_loaded_values(*accelerator_state_, *each.optimizer);
  }
  accelerator_state_->steps += recorded.steps;
  return upload_scalars(recorded);
}

Tensors GraphedStepCore::upload_scalars(const Recorded& recorded) {
  for (const RecordedOptimizer& each : recorded.optimizers) each.numbers.upload_to_device();
  recorded.graph->replay();
  // Replays bypass the version counters. Autograd graphs from before the step must detect the change.
  const std::vector<at::Tensor> written = existing(recorded.written);
  for (const at::Tensor& tensor : written) base::count_write(tensor);
  accelerator_state_->masters.mark_stepped(written);
  for (const RecordedOptimizer& each : recorded.optimizers) each.optimizer->scaled().replayed(each.flags);
  precision::drop_cached_casts();  // an open autocast region may have cached casts of the old weights
  base::record_heartbeat_step();
  Tensors results;
  for (const at::Tensor& output : recorded.outputs) results.push_back(output.clone());
  return results;
}

}  // namespace accelerate::prepared

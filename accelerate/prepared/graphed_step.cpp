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
#include "accelerate/comm/user_call.hpp"
#include "accelerate/precision/autocast.hpp"
#include "accelerate/prepared/loss_scaling.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/optimizer.hpp"
#include "accelerate/prepared/written_tensors.hpp"

namespace accelerate::prepared {

// Captured values of one optimizer.
struct RecordedOptimizer {
  std::shared_ptr<OptimizerCore> optimizer;
  optim::RecordedNumbers numbers;
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
  explicit Recording(Shared& shared) : shared_(shared), optimizers_(shared.registry.list<OptimizerCore>()) {
    shared_.recording = true;
    try {
      for (const auto& optimizer : optimizers_) {
        optimizer->fused()->begin_recording();
        optimizer->scaled().begin_recording();
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
    shared_.recording = false;
    for (auto& optimizer : std::exchange(optimizers_, {})) {
      auto numbers = optimizer->fused()->end_recording();
      auto flags = optimizer->scaled().end_recording();
      all.push_back({std::move(optimizer), std::move(numbers), std::move(flags)});
    }
    return all;
  }

 private:
  Shared& shared_;
  std::vector<std::shared_ptr<OptimizerCore>> optimizers_;
};

// Updates masters from values that were loaded into their parameters. This must not be captured.
void follow_loaded_values(Shared& shared, OptimizerCore& optimizer) {
  if (shared.masters.empty()) return;
  for (const auto& group : optimizer.optimizer().param_groups()) std::ignore = shared.masters.of(group.params());
}

// A copy from pinned memory blocks, because the caller may change that memory after the step returns.
void copy_input(const at::Tensor& to, const at::Tensor& input) { to.copy_(input, /*non_blocking=*/!input.is_pinned()); }

std::vector<gradient::Engine*> engines_of(Shared& shared) {
  std::vector<gradient::Engine*> engines;
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    if (model.engine() != nullptr) engines.push_back(model.engine());
  }
  return engines;
}

}  // namespace

struct GraphedStepCore::Recorded {
  std::unique_ptr<device::Graph> graph;
  Tensors inputs, outputs;
  std::vector<WeakTensor> written;  // parameters and buffers that each replay writes
  std::vector<RecordedOptimizer> optimizers;
  int64_t steps = 0;  // steps of the first optimizer
};

GraphedStepCore::GraphedStepCore(std::shared_ptr<Shared> shared, const GraphOptions& options, bool reads_losses)
    : shared_(std::move(shared)), shelf_(options), reads_losses_(reads_losses) {
  check(options, shared_->place);
}

GraphedStepCore::~GraphedStepCore() = default;

// Each reason is something that the host does, or must know, during a step.
std::string GraphedStepCore::why_not() const {
  if (!failed_.empty()) return failed_;
  const comm::Group& group = shared_->group;
  std::string why =
      why_no_graphs(shared_->device, device::find_graphs(shared_->device.type()), group.backend(), group.size());
  if (!why.empty()) return why;
  const size_t engines = engines_of(*shared_).size();
  if (engines > 1) {
    return fmt::format("in each backward the {} ranks exchange which of {} models it reached", group.size(), engines);
  }
  for (const gradient::Engine* engine : engines_of(*shared_)) {
    if (why = engine->reducer().why_not_recorded(); !why.empty()) return why;
  }
  if (shared_->window.options.steps > 1) {
    return fmt::format("gradient_accumulation_steps is {}; a recorded step has one micro-batch",
                       shared_->window.options.steps);
  }
  if (shared_->check_synchronized_every > 0) {
    return fmt::format("check_synchronized_every is {}; the host reads the compared values",
                       shared_->check_synchronized_every);
  }
  if (reads_losses_) return "stop_at_nan_loss is set; the host reads each loss";
  if (shared_->local_steps > 0) return "local SGD counts steps on the host";
  if (!shared_->fused_optimizer) return "fused_optimizer is false; the optimizers' own steps read numbers of the host";
  for (const OptimizerCore& optimizer : shared_->registry.of<OptimizerCore>()) {
    if (optimizer.fused() == nullptr || !optimizer.fused()->can_record())
      return fmt::format("{} steps with numbers of the host; SGD, Adam, AdamW, Adagrad and RMSprop do not",
                         optimizer.name());
  }
  return {};
}

uint64_t GraphedStepCore::made_of() const {
  optim::Fingerprint parts;
  parts.add(static_cast<uint64_t>(shared_->registry.version()));
  for (const gradient::Engine* engine : engines_of(*shared_)) {
    parts.add(static_cast<uint64_t>(engine->reducer().memory_version()));
  }
  if (shared_->scaling) {  // host numbers in the update of the scale
    const precision::GradScalerOptions& options = shared_->scaling->scaler().options();
    parts.add(options.growth_factor);
    parts.add(options.backoff_factor);
    parts.add(static_cast<uint64_t>(options.growth_interval));
  }
  for (OptimizerCore& optimizer : shared_->registry.of<OptimizerCore>()) optimizer.fused()->add_to(parts);
  for (const ModelCore& model : shared_->registry.of<ModelCore>()) {
    for (const auto& parameter : model.parameters()) {
      parts.add(parameter.tensor);
      parts.add(uint64_t{parameter.tensor.requires_grad()});
    }
  }
  return parts.value();
}

Tensors GraphedStepCore::run(const Tensors& inputs, const Step& step) {
  if (const std::string why = why_not(); !why.empty()) return run_plain(inputs, step, why);
  const GraphShelf::Decision next = shelf_.next(described(inputs), made_of());
  if (next.cleared) graphs_.clear();
  if (next.action == GraphShelf::Action::record) return record(next.graph, inputs, step);
  if (next.action == GraphShelf::Action::replay) return replay(*graphs_.at(next.graph), inputs);
  return run_plain(inputs, step, shelf_.why_plain());
}

Tensors GraphedStepCore::run_plain(const Tensors& inputs, const Step& step, const std::string& why) const {
  if (!why.empty() && !shared_->device.is_cpu()) {
    base::log_once(base::LogLevel::warning, shared_->place, "graphed_step: runs as it is, without graphs: {}", why);
  }
  return without_graph(step(inputs));
}

std::string GraphedStepCore::why_plain() const {
  const std::string why = why_not();
  return why.empty() ? shelf_.why_plain() : why;
}

Tensors GraphedStepCore::record(size_t graph, const Tensors& inputs, const Step& step) {
  auto recorded = std::make_unique<Recorded>();
  std::string why = try_to_record(*recorded, inputs, step);
  // The captured step has not run on any rank yet. If one rank fails to capture it, no rank uses it.
  if (shared_->group.size() > 1) {
    const auto all = at::full({1}, why.empty() ? 1 : 0, at::kLong);
    comm::in_user_call("graphed_step", "whether all ranks recorded the step is not known", shared_->place,
                       [&] { shared_->group.all_reduce(all, comm::ReduceOp::min); });
    if (why.empty() && all.item<int64_t>() == 0) why = "it could not be recorded on another rank";
  }
  if (!why.empty()) take_back(*recorded);
  for (gradient::Engine* engine : engines_of(*shared_)) engine->renew_hooks();  // for eager steps on this stream
  if (!why.empty()) {
    failed_ = std::move(why);
    graphs_.clear();
    shelf_.forget();
    return run_plain(inputs, step, failed_);
  }
  graphs_.resize(std::max(graphs_.size(), graph + 1));
  graphs_[graph] = std::move(recorded);
  return give_to_device(*graphs_[graph]);
}

std::string GraphedStepCore::try_to_record(Recorded& recorded, const Tensors& inputs, const Step& step) {
  recorded.graph = device::find_graphs(shared_->device.type())->make();
  for (const at::Tensor& input : inputs) {
    const at::NoGradGuard no_grad;
    recorded.inputs.push_back(at::empty_like(input, input.options().device(shared_->device)));
    copy_input(recorded.inputs.back(), input);
  }
  precision::drop_cached_casts();
  if (shared_->scaling) {  // flags cannot be read during capture
    shared_->scaling->move_what_is_owed();
    std::ignore = shared_->scaling->any_was_skipped();
  }
  // Existing gradients are not in the memory of the graph.
  for (OptimizerCore& optimizer : shared_->registry.of<OptimizerCore>()) {
    optimizer.drop_gradients();
    follow_loaded_values(*shared_, optimizer);
  }
  const int64_t steps_before = shared_->steps;
  Recording recording(*shared_);
  const WrittenTensors written(*shared_);
  std::string why;
  try {
    device::record(
        *recorded.graph, shared_->device,
        [&] {
          for (gradient::Engine* engine : engines_of(*shared_)) engine->renew_hooks();
        },
        [&] { recorded.outputs = without_graph(step(recorded.inputs)); });
  } catch (const std::exception& error) {
    why = "it could not be recorded: " + first_line(error);
  }
  if (why.empty() && shared_->scaling) why = shared_->scaling->why_not_updated();
  recorded.optimizers = recording.end();
  recorded.steps = shared_->steps - steps_before;
  recorded.written = written.list();
  return why;
}

// Restores the state before the call.
void GraphedStepCore::take_back(const Recorded& recorded) {
  shared_->steps -= recorded.steps;
  for (const RecordedOptimizer& each : recorded.optimizers) each.numbers.count(-1);
  for (gradient::Engine* engine : engines_of(*shared_)) engine->abandon();
  if (shared_->scaling) shared_->scaling->forget();  // before drop_gradients(), which would update the scale
  for (OptimizerCore& optimizer : shared_->registry.of<OptimizerCore>()) {
    optimizer.drop_gradients();
    optimizer.scaled().iteration_ended();
  }
}

Tensors GraphedStepCore::replay(const Recorded& recorded, const Tensors& inputs) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < inputs.size(); ++i) copy_input(recorded.inputs[i], inputs[i]);
  shared_->group.check("graphed_step");
  shared_->watch.release_all();
  if (shared_->scaling) shared_->scaling->move_what_is_owed();  // a scheduler may set the learning rate of this step
  for (const RecordedOptimizer& each : recorded.optimizers) {
    each.numbers.count(1);
    follow_loaded_values(*shared_, *each.optimizer);
  }
  shared_->steps += recorded.steps;
  return give_to_device(recorded);
}

Tensors GraphedStepCore::give_to_device(const Recorded& recorded) {
  for (const RecordedOptimizer& each : recorded.optimizers) each.numbers.tell_device();
  recorded.graph->replay();
  // Replays bypass the version counters. Autograd graphs from before the step must detect the change.
  const std::vector<at::Tensor> written = existing(recorded.written);
  count_writes(written);
  shared_->masters.stepped_on(written);
  for (const RecordedOptimizer& each : recorded.optimizers) each.optimizer->scaled().replayed(each.flags);
  precision::drop_cached_casts();  // an open autocast region may have cached casts of the old weights
  base::beat_step();
  Tensors results;
  for (const at::Tensor& output : recorded.outputs) results.push_back(output.clone());
  return results;
}

}  // namespace accelerate::prepared

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/accelerator.hpp"

#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>

#include <cstdio>

#include "accelerate/gradient/clip.hpp"
#include "accelerate/job/random_states.hpp"

namespace accelerate {
namespace {

env::GivenSettings given(const AcceleratorOptions& options) {
  return {.gradient_accumulation_steps = options.gradient_accumulation_steps,
          .cpu = options.cpu,
          .backend = options.backend,
          .timeout = options.timeout,
          .debug = options.debug,
          .torch_device = options.device,
          .threads_per_rank = options.threads_per_rank,
          .allow_shared_gpus = options.allow_shared_gpus};
}

}  // namespace

Accelerator::Accelerator(const AcceleratorOptions& options)
    : Accelerator(job::start(given(options), options.force_process_group), options) {}

Accelerator::Accelerator(comm::Group group, const AcceleratorOptions& options)
    : Accelerator(job::start_on(std::move(group), given(options)), options) {}

Accelerator::Accelerator(job::Job job, const AcceleratorOptions& options)
    : options_(options), process_(job.process), shared_(std::make_shared<prepared::Shared>()) {
  shared_->group = std::move(job.group);
  shared_->device = job.device;
  shared_->place = job.place;
  shared_->window.options = {.sync_with_dataloader = options.accumulation.sync_with_dataloader,
                             .sync_each_batch = options.accumulation.sync_each_batch,
                             .short_window = options.accumulation.short_window};
  set_gradient_accumulation_steps(job.settings.gradient_accumulation_steps);
}

DistributedType Accelerator::distributed_type() const {
  if (num_processes() == 1) return DistributedType::no;
  return device().is_cuda() ? DistributedType::multi_gpu : DistributedType::multi_cpu;
}

void Accelerator::free_memory() {
  forget_models([](const auto&) { return true; });
  optimizers_.clear();
  shared_->engines = false;
  shared_->window.forget();
}

template <typename Which>
void Accelerator::forget_models(const Which& which) {
  std::erase_if(models_, [&](const auto& model) {
    if (!which(model)) return false;
    model->retire();  // handles may keep it; a second engine on the same parameters would add to its sums
    std::erase_if(shared_->models, [&](const auto& weak) { return weak.expired() || weak.lock() == model; });
    ++shared_->models_version;
    return true;
  });
}

void Accelerator::backward(const at::Tensor& loss, bool retain_graph) {
  if (loss.numel() != 1) {
    base::fail(ErrorKind::usage, place(), "backward",
               "the loss has {} elements, must have 1; take its mean() or sum() first", loss.numel());
  }
  std::vector<gradient::Engine*> engines;
  for (const auto& model : models_) {
    if (model->engine() != nullptr) engines.push_back(model->engine());
  }
  const double weight = shared_->window.scale / static_cast<double>(gradient_accumulation_steps());
  const auto run = [&] {
    // The weight rides in as the seed of the backward; no division enters the graph.
    loss.backward(weight == 1.0 ? at::Tensor{} : at::full_like(loss, weight), retain_graph);
  };
  if (engines.empty()) {
    run();
  } else {
    gradient::run_backward(engines, shared_->group, run);
  }
  shared_->window.backward_done();
}

at::Tensor Accelerator::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) {
  const auto gradients = prepared::flat_gradients(models_, parameters);
  return sync_gradients() ? gradient::clip_norm_of(gradients, max_norm, norm_type)
                          : gradient::norm_of(gradients, norm_type);
}

void Accelerator::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  if (sync_gradients()) gradient::clip_value_of(prepared::flat_gradients(models_, parameters), clip_value);
}

void Accelerator::set_gradient_accumulation_steps(int64_t steps) {
  if (steps < 1) {
    base::fail(ErrorKind::usage, place(), "gradient_accumulation_steps", "is {}, must be at least 1", steps);
  }
  shared_->window.options.steps = steps;
}

bool Accelerator::check_trigger() {
  const auto set = at::full({1}, trigger_ ? 1 : 0, at::kLong);
  shared_->group.all_reduce(set, comm::ReduceOp::max);
  trigger_ = false;
  return set.item<int64_t>() != 0;
}

void Accelerator::set_seed(uint64_t seed, const SeedOptions& options) const {
  device::set_seed(seed, options, process_index());
}

void Accelerator::synchronize_rng_states() const { job::synchronize_rng_states(shared_->group, device()); }

void Accelerator::check_module(bool there) const {
  if (!there) {
    base::fail(ErrorKind::usage, place(), "prepare",
               "the module holder is empty (made with nullptr); make the module first");
  }
}

std::shared_ptr<prepared::ModelCore> Accelerator::add_model(const void* identity,
                                                            std::vector<gradient::NamedTensor> parameters,
                                                            std::vector<gradient::NamedTensor> buffers,
                                                            bool evaluation_mode) {
  const prepared::ModelOptions options{.engine = {.buckets = options_.buckets, .static_graph = options_.static_graph},
                                       .broadcast_buffers = options_.broadcast_buffers,
                                       .evaluation_mode = evaluation_mode};
  for (const auto& known : models_) {
    if (known->is(identity, parameters, options)) return known;
  }
  // Another module took the address, or parameters were exchanged, frozen, freed or moved. One for evaluation may stand
  // beside one that trains.
  forget_models([&](const auto& model) {
    return model->identity() == identity && model->options().evaluation_mode == evaluation_mode;
  });
  auto model =
      std::make_shared<prepared::ModelCore>(shared_, identity, std::move(parameters), std::move(buffers), options);
  models_.push_back(model);
  shared_->models.push_back(model);
  ++shared_->models_version;
  return model;
}

std::shared_ptr<prepared::OptimizerCore> Accelerator::add_optimizer(torch::optim::Optimizer& optimizer) {
  for (const auto& known : optimizers_) {
    if (known->is(optimizer)) return known;
  }
  std::erase_if(optimizers_, [&](const auto& known) { return &known->optimizer() == &optimizer; });  // that one is gone
  return optimizers_.emplace_back(std::make_shared<prepared::OptimizerCore>(shared_, optimizer));
}

prepared::SchedulerOptions Accelerator::scheduler_options() const {
  const bool per_process = options_.scheduler_unit == SchedulerUnit::processes;
  return {.step_with_optimizer = options_.step_scheduler_with_optimizer,
          .steps_per_optimizer_step = per_process ? num_processes() : 1};
}

prepared::LoaderOptions Accelerator::loader_options() const {
  return {.even_batches = options_.even_batches, .device_placement = options_.device_placement};
}

void Accelerator::write_stdout(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

}  // namespace accelerate

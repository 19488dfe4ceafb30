// SPDX-License-Identifier: Apache-2.0
#include "accelerate/accelerator.hpp"

#include "accelerate/env/settings_table.hpp"
#include "accelerate/gradient/clip.hpp"
#include "accelerate/gradient/non_finite.hpp"
#include "accelerate/job/mesh_groups.hpp"
#include "accelerate/prepared/backward.hpp"
#include "accelerate/prepared/clipping.hpp"
#include "accelerate/prepared/loss_count.hpp"
#include "accelerate/prepared/sharding_support.hpp"
#include "accelerate/prepared/split_parameters.hpp"
#include "accelerate/sharding/mesh_sizes.hpp"

namespace accelerate {
namespace {

env::GivenSettings given(const AcceleratorOptions& options) {
  env::GivenSettings settings;
  env::for_each_setting([&](const auto& row) { row.of(settings) = row.of(options); });
  return settings;
}

prepared::PrepareOptions prepare_options(const AcceleratorOptions& options, int64_t data_parallel_size,
                                         env::MemoryFormat memory_format) {
  const bool per_process = options.scheduler_unit == SchedulerUnit::processes && !options.split_batches;
  return {.model = {.gradient_reducer = {.buckets = options.buckets,
                                         .static_graph = options.static_graph,
                                         .hook = options.comm_hook},
                    .broadcast_buffers = options.broadcast_buffers},
          .loader = {.even_batches = options.even_batches,
                     .split_batches = options.split_batches,
                     .device_placement = options.device_placement,
                     .dispatch_batches = options.dispatch_batches,
                     .memory_format = memory_format},
          .scheduler = {.step_with_optimizer = options.step_scheduler_with_optimizer,
                        .steps_per_optimizer_step = per_process ? data_parallel_size : 1},
          .device_placement = options.device_placement,
          .memory_format = memory_format};
}

tracking::TrackingOptions tracking_options(const AcceleratorOptions& options) {
  tracking::TrackingOptions tracked{.log_with = options.log_with, .logging_dir = options.logging_dir};
  if (!tracked.logging_dir && !options.project.project_dir.empty()) tracked.logging_dir = options.project.project_dir;
  return tracked;
}

/// Creates the state that all prepared objects share.
std::shared_ptr<prepared::AcceleratorState> shared_by_all(const job::JobContext& job,
                                                          const AcceleratorOptions& options) {
  if (options.check_synchronized_every < 0) {
    base::fail(ErrorKind::usage, job.place, "check_synchronized_every", "is {}, must be 0 (never) or more",
               options.check_synchronized_every);
  }
  const auto variables = env::current_variables();
  const auto config = env::read_config(variables);
  const auto sizes = job::resolve_parallelism(options.parallelism_config, variables, config, job.place);
  auto sharding =
      sharding::resolve_sharding_settings(options.sharding, options.fsdp_plugin, variables, job.place, config);
  sharding::apply_mesh_sizes(sizes, sharding, job.place);
  auto shared = std::make_shared<prepared::AcceleratorState>();
  shared->mesh = job::make_mesh_groups(job.group, sizes);
  shared->group = shared->mesh.data_context;
  shared->device = job.device;
  shared->place = job.place;
  shared->debug = job.settings.debug;
  shared->policy = prepared::checked_policy(
      options.precision_policy.value_or(precision::policy_of(job.settings.mixed_precision)), job.device, job.place);
  shared->window.options = {.sync_with_dataloader = options.accumulation.sync_with_dataloader,
                            .sync_each_batch = options.accumulation.sync_each_batch,
                            .short_window = options.accumulation.short_window};
  shared->check_synchronized_every = options.check_synchronized_every;
  shared->stop_at_nan_loss = options.stop_at_nan_loss;
  shared->fused_optimizer = options.fused_optimizer;
  shared->sharding = sharding.strategy;
  shared->state_dict_type = sharding.state_dict_type;
  shared->full_shard = sharding.full_shard;
  if (!job.device.is_cpu()) shared->full_shard.units.min_bytes = 32 << 20;  // small collectives use a GPU badly
  prepared::check_sharding(*shared, options.project.save_on_each_node);
  precision::check_grad_scaler_options(options.grad_scaler, job.place);
  if (shared->policy.scales_loss()) {
    shared->scaling = std::make_shared<prepared::LossScaling>(*shared, options.grad_scaler);
  }
  return shared;
}

}  // namespace

Accelerator::Accelerator(const AcceleratorOptions& options)
    : Accelerator(job::start(given(options), options.force_process_group), options) {}

Accelerator::Accelerator(comm::Group group, const AcceleratorOptions& options)
    : Accelerator(job::start_on_group(std::move(group), given(options)), options) {}

Accelerator::Accelerator(const job::JobContext& job, const AcceleratorOptions& options)
    : Accelerator(job, shared_by_all(job, options), options) {}

Accelerator::Accelerator(const job::JobContext& job, const std::shared_ptr<prepared::AcceleratorState>& shared,
                         const AcceleratorOptions& options)
    : ProcessInfo(shared, job.process.local_rank),
      Checkpoints(std::make_unique<prepared::Checkpointing>(shared, options.project)),
      TrackingFacade(tracking_options(options), job.place),
      options_(prepare_options(options, shared->mesh.data.size(), job.settings.memory_format)),
      mixed_precision_(job.settings.mixed_precision) {
  set_gradient_accumulation_steps(job.settings.gradient_accumulation_steps);
}

void Accelerator::free_memory() {
  accelerator_state_->registry.clear();
  accelerator_state_->window.forget();
  accelerator_state_->watch.clear();
  accelerator_state_->masters.clear();
  if (accelerator_state_->scaling) accelerator_state_->scaling->forget();
  profile::empty_cache(device());
}

void Accelerator::begin_backward(const at::Tensor& loss) {
  if (loss.numel() != 1) {
    base::fail(ErrorKind::usage, place(), "backward",
               "the loss has {} elements, must have 1; take its mean() or sum() first", loss.numel());
  }
  prepared::check_has_autograd_graph(*accelerator_state_, loss);
  prepared::begin_backward(*accelerator_state_);
  prepared::check_loss_is_not_nan(*accelerator_state_, loss);
}

void Accelerator::backward(const at::Tensor& loss, bool retain_graph) {
  begin_backward(loss);
  weighted_backward(loss, prepared::weight_of_mean(*accelerator_state_), retain_graph);
}

void Accelerator::backward(const at::Tensor& loss, const LossCount& count, bool retain_graph) {
  begin_backward(loss);
  weighted_backward(loss, prepared::weight_of_sum(*accelerator_state_, count), retain_graph);
}

void Accelerator::weighted_backward(const at::Tensor& loss, double weight, bool retain_graph) {
  prepared::run_backward(
      *accelerator_state_,
      // The weight is the initial gradient of the backward, so that no division enters the graph.
      [&] { loss.backward(prepared::backward_seed(*accelerator_state_, loss, weight), retain_graph); },
      [&](prepared::Run run) { prepared::run_with_reducers(*accelerator_state_, run); });
}

at::Tensor Accelerator::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type,
                                        bool error_if_nonfinite) {
  gradient::check_norm_limit(max_norm, norm_type);
  prepared::refuse_split_parameters(*accelerator_state_, parameters, "clip_grad_norm_",
                                    "the norm would lack the other parts; use nn::clip_split_grad_norm_()");
  const prepared::ClippedGradients gradients(*accelerator_state_, models_of(), parameters);
  prepared::LossScaling* const scaling = accelerator_state_->scaling.get();
  if (!sync_gradients()) {
    const at::Tensor norm = gradients.norm(norm_type);
    return scaling != nullptr ? scaling->unscaled_norm(norm, parameters) : norm;
  }
  if (scaling != nullptr) scaling->unscale_owners(parameters);
  if (error_if_nonfinite) {
    auto pieces = prepared::named_shards(models_of(), parameters);
    gradient::require_finite(gradients.norm(norm_type), pieces, place(), gradients.is_over_ranks());
  }
  return gradients.clip(max_norm, norm_type);
}

void Accelerator::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  gradient::check_value_limit(clip_value);
  if (!sync_gradients()) return;
  if (accelerator_state_->scaling) accelerator_state_->scaling->unscale_owners(parameters);
  gradient::clip_value_of(prepared::flat_gradients(models_of(), parameters), clip_value);
}

void Accelerator::unscale_gradients() {
  if (!accelerator_state_->scaling || !sync_gradients()) return;
  for (auto& optimizer : accelerator_state_->registry.of<prepared::OptimizerCore>())
    accelerator_state_->scaling->unscale(optimizer);
}

bool Accelerator::optimizer_step_was_skipped() const {
  return accelerator_state_->scaling && accelerator_state_->scaling->any_was_skipped();
}

prepared::LossScaling& Accelerator::scaling(std::string_view operation) const {
  if (!accelerator_state_->scaling) {
    base::fail(ErrorKind::usage, place(), operation, "mixed_precision is {}, only fp16 has a loss scale",
               env::mixed_precision_name(mixed_precision_));
  }
  return *accelerator_state_->scaling;
}

double Accelerator::loss_scale() const {
  return accelerator_state_->scaling ? scaling("loss_scale").scaler().state().scale : 1.0;
}

precision::ScalerState Accelerator::scaler_state() const { return scaling("scaler_state").scaler().state(); }

void Accelerator::load_scaler_state(const precision::ScalerState& state) {
  scaling("load_scaler_state").load_state(state);
}

void Accelerator::drop_gradients() { prepared::drop_gradients(*accelerator_state_); }

void Accelerator::set_gradient_accumulation_steps(int64_t steps) {
  if (steps < 1) {
    base::fail(ErrorKind::usage, place(), "gradient_accumulation_steps", "is {}, must be at least 1", steps);
  }
  accelerator_state_->window.options.steps = steps;
}

void Accelerator::set_seed(uint64_t seed, const SeedOptions& options) const {
  device::set_seed(seed, options, accelerator_state_->group.rank());
}

void Accelerator::synchronize_rng_states() const { job::synchronize_rng_states(group(), device()); }

}  // namespace accelerate

// SPDX-License-Identifier: Apache-2.0
// The facade: it holds the rooms' objects and forwards; no algorithm lives here.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/checkpoints.hpp"
#include "accelerate/comm/group.hpp"
#include "accelerate/device/seed.hpp"
#include "accelerate/gradient/uneven_join.hpp"
#include "accelerate/job/batch_size.hpp"
#include "accelerate/job/random_states.hpp"
#include "accelerate/job/start.hpp"
#include "accelerate/job/stop_notice.hpp"
#include "accelerate/nn/convert.hpp"
#include "accelerate/options.hpp"
#include "accelerate/precision/autocast.hpp"
#include "accelerate/prepared/dtypes.hpp"
#include "accelerate/prepared/graphed_step.hpp"
#include "accelerate/prepared/guards.hpp"
#include "accelerate/prepared/local_sgd.hpp"
#include "accelerate/prepared/loss_scaling.hpp"
#include "accelerate/prepared/prepare.hpp"
#include "accelerate/processes.hpp"
#include "accelerate/profile/devices.hpp"
#include "accelerate/profile/memory.hpp"
#include "accelerate/profile/profiler.hpp"
#include "accelerate/tracked_run.hpp"
#include "accelerate/tracking/logger.hpp"

namespace accelerate {

using prepared::GraphedStep;
using prepared::GraphOptions;
using prepared::LossCount;
using prepared::PreparedLoader;
using prepared::PreparedOptimizer;
using prepared::PreparedScheduler;
using profile::MemoryFigures;
using profile::ProfileOptions;
using profile::Profiler;
using profile::ProfileSchedule;
using tracking::Logger;
using tracking::LoggerOptions;

/// Finds out where it runs and makes one training loop run there: one process or many, CPU or GPU.
///
/// Several may live in one process. Not copyable; objects it prepared may outlive it.
/// What it can besides: who and where, and what the processes do together (Processes), save_state() and its kin
/// (Checkpoints), trackers (TrackedRun).
class Accelerator : public Processes, public Checkpoints, public TrackedRun {
 public:
  explicit Accelerator(const AcceleratorOptions& options = {});
  /// On a group that exists already (ranks as threads, a part of a job): backend, timeout and debug are that group's.
  Accelerator(comm::Group group, const AcceleratorOptions& options);
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;
  Accelerator(Accelerator&&) = default;
  Accelerator& operator=(Accelerator&&) = default;

  // prepare -----------------------------------------------------------------------------------------------------------
  /// Modules (holders, references, shared pointers, torch::jit::Module), optimizers, loaders and schedulers, any number
  /// in any order, and vectors of modules, optimizers or schedulers; results come back in that order, as a tuple unless
  /// it is one. What is prepared already comes back as it is. Every rank calls it with the same kinds of objects in the
  /// same order.
  ///
  /// Module holders, loaders of ours and smart pointers are shared, rvalues owned; other lvalues are referenced and
  /// must live as long as their handles.
  ///
  /// Throws Error (peer) on every rank when parameters differ between ranks in name, shape or dtype.
  template <typename... Objects>
  [[nodiscard]] auto prepare(Objects&&... objects) {
    static_assert(sizeof...(Objects) > 0, "prepare() takes at least one object");
    if constexpr (sizeof...(Objects) == 1) {
      return prepared::prepare(shared_, options_, std::forward<Objects>(objects)...);
    } else {  // braces keep the order of evaluation
      return std::tuple{prepared::prepare(shared_, options_, std::forward<Objects>(objects))...};
    }
  }
  /// evaluation_mode: moved to the device, but its gradients are never reduced.
  template <typename Model>
  [[nodiscard]] auto prepare_model(Model&& model, bool evaluation_mode = false) {
    auto options = options_;
    options.model.evaluation_mode = evaluation_mode;
    return prepared::prepare(shared_, options, std::forward<Model>(model));
  }
  template <typename Optimizer>
  [[nodiscard]] auto prepare_optimizer(Optimizer&& optimizer) {
    return prepare(std::forward<Optimizer>(optimizer));
  }
  template <typename Scheduler>
  [[nodiscard]] auto prepare_scheduler(Scheduler&& scheduler) {
    return prepare(std::forward<Scheduler>(scheduler));
  }
  /// Loaders that can be told their rank (ours, and any with shard(rank, world_size)) read only this rank's samples. Of
  /// anything else that yields batches every rank reads all and keeps every num_processes-th; what it draws from
  /// LibTorch's CPU generator is drawn alike on all ranks, so that they see one order. A generator of its own is seeded
  /// alike by the caller.
  template <typename Loader>
  [[nodiscard]] auto prepare_data_loader(Loader&& loader) {
    return prepare(std::forward<Loader>(loader));
  }

  /// A handle whose passes leave out this rank's first batches, for an epoch that was begun before; the given one is
  /// not changed. Loaders of ours know where they stand themselves: see their state() and load_state().
  template <typename Loader>
  [[nodiscard]] static PreparedLoader<Loader> skip_first_batches(const PreparedLoader<Loader>& loader,
                                                                 int64_t num_batches = 0) {
    return loader.skip_first_batches(num_batches);
  }

  /// The object that was given to prepare().
  template <typename Prepared>
  [[nodiscard]] static auto unwrap_model(const Prepared& model) {
    return model.unwrap();
  }

  /// Parameters and buffers by name, as the module has them: no copies.
  template <typename Model>
  [[nodiscard]] static torch::OrderedDict<std::string, at::Tensor> get_state_dict(const PreparedModel<Model>& model) {
    return prepared::state_dict(model.core());
  }

  /// Puts SyncBatchNorm in place of the stock BatchNorm layers of a module or module holder, before or after prepare():
  /// see nn/convert.hpp for those that it cannot exchange. Modules that declare nn::SyncBatchNorm themselves need no
  /// call: prepare() connects them.
  /// returns   how many layers normalise over all ranks afterwards
  template <typename Model>
  int64_t convert_sync_batchnorm(Model&& model) const {
    if constexpr (std::derived_from<std::remove_cvref_t<Model>, torch::nn::Module>) {
      return nn::convert_sync_batchnorm(model, group());
    } else {
      return nn::convert_sync_batchnorm(*model, group());
    }
  }

  /// Compares parameters and buffers across the ranks, bit for bit, by 16 bytes on the wire. Collective. Buffers that
  /// the next forward makes rank 0's anyway (after a synchronised one, unless broadcast_buffers is off) are left out.
  /// Throws Error (usage) on every rank, with the first that differs and who agrees on it.
  template <typename Model>
  void check_synchronized(const PreparedModel<Model>& model) const {
    model.core().check_synchronized();
  }

  /// Whether loaders prepared from now on give every rank the same number of batches.
  [[nodiscard]] bool split_batches() const { return options_.loader.split_batches; }
  [[nodiscard]] bool even_batches() const { return options_.loader.even_batches; }
  void set_even_batches(bool even) { options_.loader.even_batches = even; }

  /// Calls run(batch_size), a tenth less each time, until memory suffices on every rank; returns that size. Where run
  /// is collective (a prepared model's backward on several ranks), memory must run out on all of them alike: one that
  /// comes back alone waits here for those that wait for it there, and all end with the timeout's error (peer).
  /// Throws Error (device) when zero is reached; other exceptions pass through.
  int64_t find_executable_batch_size(const std::function<void(int64_t)>& run, int64_t starting_batch_size = 128) const {
    return job::find_executable_batch_size(group(), run, starting_batch_size);
  }

  /// Forgets what was prepared and where accumulation stands, and gives the device the memory back that its allocator
  /// keeps. Handles stay usable, but gradients are not averaged any more: prepare again what goes on training.
  void free_memory();
  /// free_memory(), by the other name it has in Hugging Face Accelerate.
  void clear() { free_memory(); }

  // The step ----------------------------------------------------------------------------------------------------------
  /// loss   scalar
  /// Runs loss.backward() with the loss divided by gradient_accumulation_steps (a short last window: by its length),
  /// and lets this rank join the reduction of models that its graph does not reach.
  ///
  /// With mixed_precision fp16 the loss is scaled too: gradients carry the scale until they are clipped or stepped on,
  /// by clip_grad_norm_() of the Accelerator and the prepared optimizer. LibTorch's own clip_grad_norm_() does not know
  /// the scale: it clips nearly everything away, which cannot be detected.
  /// Throws Error (data) for a NaN loss where stop_at_nan_loss asks for it.
  /// \throws Error (usage) if a parameter changed since the last backward while its gradient carried the scale, or, on
  ///         one rank, within an accumulation window: an optimizer stepped that is not prepared.
  /// \throws Error (usage) if a loader handed out another batch since the last backward in the same accumulate() scope,
  ///         and the scope was opened outside the loop.
  void backward(const at::Tensor& loss, bool retain_graph = false);
  /// loss    scalar, the sum over this rank's samples or tokens of this micro-batch, not their mean
  /// count   how many: {.samples = n} or {.tokens = n}
  /// At the end of the window gradients are those of the mean over all its samples or tokens, on all ranks: of one
  /// large batch, however they are spread over ranks and micro-batches. Within a window no rank waits for another; its
  /// last backward adds the ranks' counts up, so every rank calls it. All losses of a window are counted alike, one in
  /// each micro-batch. A window that counts nothing leaves zeros.
  void backward(const at::Tensor& loss, const LossCount& count, bool retain_graph = false);

  /// A block that computes as a prepared model's forward does; nothing with mixed_precision no. {.enabled = false}: one
  /// that computes in its inputs' dtypes within such a block. Prepared models keep their own policy in either.
  [[nodiscard]] precision::Autocast autocast(const AutocastOptions& options = {}) const {
    return precision::Autocast(prepared::autocast_region(*shared_, options.enabled, options.cache_enabled));
  }
  /// What prepared models compute in.
  [[nodiscard]] Precision mixed_precision() const { return mixed_precision_; }

  /// Opens one micro-batch; within a window the prepared optimizers and schedulers rest and, with several ranks, the
  /// gradients of the given models (none given: of all) stay local.
  ///
  /// Call it once per micro-batch, in the loop's body; zero_grad() may come first or last in it. Several backwards may
  /// run in it, of several models or of parts of a batch. A loop that is left within a window leaves
  /// it open: the next accumulate() goes on with it, and until it ends prepared optimizers rest;
  /// set_sync_gradients(true) or free_memory() ends it at once. An optimizer that was not prepared knows no windows:
  /// step it where sync_gradients() is true.
  template <typename... Models>
  [[nodiscard]] prepared::AccumulateGuard accumulate(const Models&... models) {
    return {shared_, models_of(models...)};
  }
  /// Backwards of forwards that run while it is open stay local.
  template <typename... Models>
  [[nodiscard]] prepared::NoSyncGuard no_sync(const Models&... models) const {
    return prepared::NoSyncGuard(models_of(models...));
  }
  /// The next backward is reduced although its forward ran within no_sync.
  template <typename Model>
  void trigger_sync_in_backward(const PreparedModel<Model>& model) {
    for (auto* engine : model.core().engines()) engine->set_sync(true);
  }
  /// Within it ranks may run out of batches at different times (even_batches off, or streams): one that leaves it, or
  /// calls its finish(), takes part in the others' reductions until all have left; parameters and schedules then are
  /// equal. Collective.
  template <typename... Models>
  [[nodiscard]] gradient::UnevenJoin join_uneven_inputs(const Models&... models) const {
    auto list = prepared::join_models(models_of(models...));
    auto group = shared_->group.duplicate();
    if (shared_->scaling) list.push_back(shared_->scaling->join_model(group));
    return {std::move(group), std::move(list), {}, prepared::equal_schedules_of(shared_)};
  }
  /// Local SGD for one model: call its step() after each optimizer step.
  template <typename Model>
  [[nodiscard]] prepared::LocalSgd local_sgd(const PreparedModel<Model>& model, int64_t steps) const {
    return prepared::LocalSgd(shared_, model.core_ptr(), steps);
  }

  /// A training step as one command for the device: CUDA graphs. Its first calls run the function as it is, then it is
  /// recorded with forward, backward, all-reduce, unscaling, clipping and updates, and replayed with new inputs. On the
  /// CPU, and wherever something cannot be recorded, it is the plain step, and says why. See GraphedStep for what the
  /// function may hold:
  ///
  ///   auto step = accelerator.graphed_step([&](const at::Tensor& x, const at::Tensor& y) {
  ///     optimizer.zero_grad();
  ///     auto loss = torch::cross_entropy_loss(model(x), y);
  ///     accelerator.backward(loss);
  ///     optimizer.step();
  ///     return loss;
  ///   });
  ///   for (auto& [images, labels] : loader) {
  ///     auto loss = step(images, labels);
  ///     scheduler.step();
  ///   }
  template <typename Function>
  [[nodiscard]] GraphedStep<Function> graphed_step(Function function, const GraphOptions& options = {}) const {
    return {std::move(function), std::make_shared<prepared::GraphedStepCore>(shared_, options, stop_at_nan_loss_)};
  }

  /// Scales the gradients so that their norm is at most max_norm; nothing within an accumulation window.
  /// parameters   all of one prepared model: its flat buckets are scaled, a few operations in all; one that is listed
  ///              twice (a shared weight) counts once
  /// norm_type    p of the p-norm, above 0; infinity for the largest absolute value
  /// error_if_nonfinite   a norm that is inf or NaN is an Error (data) that names the parameter, and nothing is scaled;
  ///              the host waits for it
  /// returns   0-dim tensor on the device, the norm before clipping; no host wait
  at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2.0,
                             bool error_if_nonfinite = false);
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);
  template <typename Model>
  at::Tensor clip_grad_norm_(const PreparedModel<Model>& model, double max_norm, double norm_type = 2.0,
                             bool error_if_nonfinite = false) {
    return clip_grad_norm_(model.parameters(), max_norm, norm_type, error_if_nonfinite);
  }
  template <typename Model>
  void clip_grad_value_(const PreparedModel<Model>& model, double clip_value) {
    clip_grad_value_(model.parameters(), clip_value);
  }

  /// Divides gradients by the loss scale they carry, never twice; clipping and stepping do it by themselves. Nothing
  /// without fp16 and within an accumulation window.
  void unscale_gradients();
  template <typename Optimizer>
  void unscale_gradients(const PreparedOptimizer<Optimizer>& optimizer) {
    if (shared_->scaling && sync_gradients()) shared_->scaling->unscale(optimizer.core());
  }
  /// mixed_precision fp16: the last step of an optimizer was skipped because a gradient was inf or NaN. Waits for the
  /// device; optimizer.step_was_skipped() says it of one.
  [[nodiscard]] bool optimizer_step_was_skipped() const;
  /// What the loss is multiplied by now; 1 without fp16. Waits for the device.
  [[nodiscard]] double loss_scale() const;
  /// The loss scale and where it stands, to be saved (accelerate/precision/scaler_state_json.hpp) and loaded. Waits for
  /// the device. Throws Error (usage) without fp16.
  [[nodiscard]] precision::ScalerState scaler_state() const;
  void load_scaler_state(const precision::ScalerState& state);

  [[nodiscard]] bool sync_gradients() const { return shared_->window.ends; }
  void set_sync_gradients(bool sync) { sync ? shared_->window.end_now() : shared_->window.not_yet(); }
  /// The gradients of all that is prepared become undefined, and the accumulation window that they were of is
  /// forgotten: for a loop that begins anew after an exception. Within a window zero_grad() leaves them.
  void drop_gradients();
  [[nodiscard]] int64_t gradient_accumulation_steps() const { return shared_->window.options.steps; }
  /// Before load_state() of a checkpoint that was saved within a window: as it was then.
  void set_gradient_accumulation_steps(int64_t steps);

  // Seeing it ---------------------------------------------------------------------------------------------------------
  /// For the program's own log lines, "[rank 0] ...".
  [[nodiscard]] Logger logger(const LoggerOptions& options = {}) const {
    return {process_index(), num_processes(), [group = group()] { job::wait_in_turn(group, "logger.in_order"); },
            options};
  }
  /// Of this rank; no wait for the device.
  [[nodiscard]] MemoryFigures memory() const { return profile::memory_of(device()); }
  /// Peaks begin anew.
  void reset_peak_memory() const { profile::reset_peak_memory(device()); }
  /// Records operators until its stop(), by steps where it has a schedule.
  [[nodiscard]] Profiler profile(const ProfileOptions& options = {}) const { return {options, group(), device()}; }

  // Random numbers ----------------------------------------------------------------------------------------------------
  using SeedOptions = device::SeedOptions;
  /// Seeds the CPU's and the GPUs' default generators of this rank. Parameters are rank 0's after prepare() either way.
  void set_seed(uint64_t seed, const SeedOptions& options = {}) const;
  /// Rank 0's generator states go to all ranks.
  void synchronize_rng_states() const;

 private:
  Accelerator(const job::Job& job, const AcceleratorOptions& options);
  Accelerator(const job::Job& job, const std::shared_ptr<prepared::Shared>& shared, const AcceleratorOptions& options);

  template <typename... Models>
  std::vector<std::shared_ptr<prepared::ModelCore>> models_of(const Models&... models) const {
    if constexpr (sizeof...(Models) == 0) {
      return shared_->registry.list<prepared::ModelCore>();
    } else if constexpr (prepared::check_prepared<Models...>()) {
      return {models.core_ptr()...};
    } else {
      return {};
    }
  }
  /// Checks the loss, and what happened since the last backward.
  void begin_backward(const at::Tensor& loss);
  /// weight   what the loss is multiplied by
  void weighted_backward(const at::Tensor& loss, double weight, bool retain_graph);
  [[nodiscard]] prepared::LossScaling& scaling(std::string_view asked_by) const;

  prepared::PrepareOptions options_;
  Precision mixed_precision_ = Precision::no;
  bool stop_at_nan_loss_ = false;
  int64_t backwards_ = 0;
};

/// Runs main on num_processes threads, each a rank of its own: `Accelerator accelerator;` made within is that rank's.
/// A simulation of a job in one process, for tests and for trying things out. Returns when all have ended; the
/// exception that was thrown first is rethrown.
using job::simulate;

/// A signal that says that the job is to end, and the code that asks to be started again.
using job::resume_exit_code;
using job::StopNotice;
/// The GPUs of this machine.
using profile::devices;

/// Seeds this rank before there is an Accelerator: parameters made after it are alike on all ranks.
using job::set_seed;

}  // namespace accelerate

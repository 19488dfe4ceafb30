// SPDX-License-Identifier: Apache-2.0
// The facade: owns the objects of the other components and forwards to them. It contains no algorithms.
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
#include "accelerate/job/preemption.hpp"
#include "accelerate/job/random_states.hpp"
#include "accelerate/job/start.hpp"
#include "accelerate/nn/convert.hpp"
#include "accelerate/options.hpp"
#include "accelerate/precision/autocast.hpp"
#include "accelerate/prepared/dtypes.hpp"
#include "accelerate/prepared/graphed_step.hpp"
#include "accelerate/prepared/guards.hpp"
#include "accelerate/prepared/local_sgd.hpp"
#include "accelerate/prepared/loss_scaling.hpp"
#include "accelerate/prepared/prepare.hpp"
#include "accelerate/prepared/sharding_support.hpp"
#include "accelerate/process_info.hpp"
#include "accelerate/profile/devices.hpp"
#include "accelerate/profile/memory.hpp"
#include "accelerate/profile/profiler.hpp"
#include "accelerate/sharding/whole_parameters.hpp"
#include "accelerate/tracking/logger.hpp"
#include "accelerate/tracking_facade.hpp"

namespace accelerate {

using prepared::GraphedStep;
using prepared::GraphOptions;
using prepared::LossCount;
using prepared::PreparedLoader;
using prepared::PreparedOptimizer;
using prepared::PreparedScheduler;
/// Type-erased handles for non-template functions and class members. The handles that prepare() returns convert to
/// them: any prepared model, optimizer, loader, and any prepared scheduler of this library except ReduceLROnPlateau.
using AnyModel = prepared::PreparedModel<torch::nn::Module>;
using AnyOptimizer = prepared::PreparedOptimizer<torch::optim::Optimizer>;
using AnyScheduler = prepared::PreparedScheduler<optim::Scheduler>;
template <typename Batch>
using AnyLoader = prepared::ErasedLoader<Batch>;
using profile::MemoryFigures;
using profile::ProfileOptions;
using profile::Profiler;
using profile::ProfileSchedule;
using tracking::Logger;
using tracking::LoggerOptions;

/// Reads the environment, selects the device, joins the process group, and prepares models, optimizers, loaders and
/// schedulers for training on one or many processes, on CPU or GPU.
///
/// Several Accelerators may exist in one process. An Accelerator is movable but not copyable. Prepared objects may
/// outlive it. The base classes provide ranks and collectives (ProcessInfo), save_state() and related functions
/// (Checkpoints), and trackers (TrackingFacade).
///
/// \note Not thread-safe. Create an Accelerator in the thread that trains, and use it and its prepared objects only
///   there, because the current device and the number of LibTorch threads belong to a thread.
class Accelerator : public ProcessInfo, public Checkpoints, public TrackingFacade {
 public:
  /// Connects all ranks of the job. Collective.
  ///
  /// \throws Error (usage) if an option is out of range or contradicts another one.
  /// \throws Error (environment) if the launcher's variables or the config file are incomplete or contradictory.
  /// \throws Error (device) if the device does not exist, or if a machine has more ranks than GPUs.
  /// \throws Error (peer) if a rank does not join within the timeout.
  explicit Accelerator(const AcceleratorOptions& options = {});
  /// Uses an existing group, for example ranks as threads or a subset of a job. Backend, timeout and debug mode are
  /// those of the group.
  Accelerator(comm::Group group, const AcceleratorOptions& options);
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;
  Accelerator(Accelerator&&) = default;
  Accelerator& operator=(Accelerator&&) = default;

  // prepare -----------------------------------------------------------------------------------------------------------
  /// Prepares any number of objects in any order: modules (holders, references, shared pointers, torch::jit::Module),
  /// optimizers, loaders, schedulers, and vectors of modules, optimizers or schedulers. Every rank calls it with the
  /// same kinds of objects in the same order.
  ///
  /// prepare() shares ownership of module holders, smart pointers and Accelerate loaders. It takes ownership of
  /// rvalues. Any other lvalue is kept by reference and must outlive its handle.
  ///
  /// \returns the handles in the order of the arguments: one handle, or a tuple if there are several arguments. A
  ///   handle that is passed again is returned unchanged.
  /// \throws Error (peer) on every rank if parameters differ between ranks in name, shape or dtype.
  template <typename... Objects>
  [[nodiscard]] auto prepare(Objects&&... objects) {
    static_assert(sizeof...(Objects) > 0, "prepare() takes at least one object");
    if constexpr (sizeof...(Objects) == 1) {
      return prepared::prepare(accelerator_state_, options_, std::forward<Objects>(objects)...);
    } else {  // a braced list is evaluated from left to right
      return std::tuple{prepared::prepare(accelerator_state_, options_, std::forward<Objects>(objects))...};
    }
  }
  /// \param evaluation_mode  If true, the model is moved to the device, but its gradients are never reduced.
  template <typename Model>
  [[nodiscard]] auto prepare_model(Model&& model, bool evaluation_mode = false) {
    auto options = options_;
    options.model.evaluation_mode = evaluation_mode;
    return prepared::prepare(accelerator_state_, options, std::forward<Model>(model));
  }
  /// As prepare(), for one optimizer.
  template <typename Optimizer>
  [[nodiscard]] auto prepare_optimizer(Optimizer&& optimizer) {
    return prepare(std::forward<Optimizer>(optimizer));
  }
  /// As prepare(), for one scheduler.
  template <typename Scheduler>
  [[nodiscard]] auto prepare_scheduler(Scheduler&& scheduler) {
    return prepare(std::forward<Scheduler>(scheduler));
  }
  /// Loaders of this library, and any loader with shard(rank, world_size), read only the samples of this rank. For any
  /// other range of batches, every rank reads all batches and keeps every num_processes-th; random numbers that its
  /// pass draws from LibTorch's default CPU generator are the same on all ranks, so that the order is the same. If the
  /// loader has its own generator, the caller seeds it equally on all ranks.
  template <typename Loader>
  [[nodiscard]] auto prepare_data_loader(Loader&& loader) {
    return prepare(std::forward<Loader>(loader));
  }

  /// Returns a handle that skips the first batches of this rank in every pass, to resume an interrupted epoch. The
  /// given handle is not changed. Loaders of this library can instead save and restore their position with state() and
  /// load_state().
  template <typename Loader>
  [[nodiscard]] static PreparedLoader<Loader> skip_first_batches(const PreparedLoader<Loader>& loader,
                                                                 int64_t num_batches = 0) {
    return loader.skip_first_batches(num_batches);
  }
  template <typename Batch>
  [[nodiscard]] static AnyLoader<Batch> skip_first_batches(const AnyLoader<Batch>& loader, int64_t num_batches = 0) {
    return loader.skip_first_batches(num_batches);
  }

  /// Returns the object that was given to prepare().
  template <typename Prepared>
  [[nodiscard]] static auto unwrap_model(const Prepared& model) {
    return model.unwrap();
  }

  /// Returns parameters and buffers by the module's own names, without copies. With full_shard the parameters are
  /// gathered one at a time in the memory of rank 0's host, as in Hugging Face Accelerate: other ranks get an empty
  /// dict, and all ranks must call it. The same holds for a model with tensor parallel layers, of which the parts are
  /// joined.
  template <typename Model>
  [[nodiscard]] static torch::OrderedDict<std::string, at::Tensor> get_state_dict(const PreparedModel<Model>& model) {
    return prepared::state_dict(model.core());
  }

  /// Replaces the stock BatchNorm layers of a module or module holder by SyncBatchNorm, before or after prepare().
  /// nn/convert.hpp lists the layers that cannot be replaced. Modules that declare nn::SyncBatchNorm members do not
  /// need this call, because prepare() connects them to the group.
  /// \returns the number of layers that are synchronised over all data parallel ranks afterwards.
  template <typename Model>
  int64_t convert_sync_batchnorm(Model&& model) const {
    if constexpr (std::derived_from<std::remove_cvref_t<Model>, torch::nn::Module>) {
      return nn::convert_sync_batchnorm(model, data_parallel_group());
    } else {
      return nn::convert_sync_batchnorm(*model, data_parallel_group());
    }
  }

  /// Compares parameters and buffers bit for bit across the ranks, with 16 bytes of communication. Collective. Buffers
  /// that the next forward overwrites with those of rank 0 are not compared (after a synchronised forward, unless
  /// broadcast_buffers is false). The parts of sharded parameters are compared across replicas, with 16 bytes for
  /// each part.
  /// \throws Error (usage) on every rank, with the first tensor that differs and the ranks that agree on it.
  template <typename Model>
  void check_synchronized(const PreparedModel<Model>& model) const {
    model.core().check_synchronized();
  }

  /// Returns a scope in which every rank has the whole parameters of the model. Operators, and code that reads memory,
  /// may use and change them; each rank then keeps its part of the new values, which must be equal on all ranks.
  /// Memory: the whole model on every rank. Without sharded parameters the scope does nothing. Collective.
  /// \throws Error (usage) if `options` are not the defaults: PyTorch's other values are not supported.
  template <typename Model>
  [[nodiscard]] static sharding::WholeParameters summon_full_params(
      const PreparedModel<Model>& model, const sharding::WholeParametersOptions& options = {}) {
    sharding::check_options(options, model.core().place());
    model.core().complete_step();
    return sharding::WholeParameters(model.core().sharded_in_forward());
  }
  /// Returns a text that describes how the parameters of the model are divided over the ranks: the units, which are
  /// exchanged in one collective each, and the number of elements of this rank. prepare() logs its first line on rank 0
  /// at level info.
  /// \returns "not sharded" without sharding or with a single rank.
  template <typename Model>
  [[nodiscard]] static std::string sharding_plan(const PreparedModel<Model>& model) {
    return model.core().sharding_plan();
  }

  /// Settings of the loaders that are prepared from now on: see AcceleratorOptions::split_batches and even_batches.
  [[nodiscard]] bool split_batches() const { return options_.loader.split_batches; }
  [[nodiscard]] bool even_batches() const { return options_.loader.even_batches; }
  void set_even_batches(bool even) { options_.loader.even_batches = even; }

  /// Calls run(batch_size) and reduces the size by one tenth until no rank runs out of memory. Collective. If `run`
  /// calls collectives (for example the backward of a prepared model on several ranks), all ranks must run out of
  /// memory in the same attempt. Otherwise the rank that returns alone blocks here while the others block inside the
  /// collective, and all fail at the timeout with Error (peer).
  ///
  /// \returns the batch size that fits on every rank.
  /// \throws Error (device) if the size reaches 0. Other exceptions are rethrown.
  int64_t find_executable_batch_size(const std::function<void(int64_t)>& run, int64_t starting_batch_size = 128) const {
    return job::find_executable_batch_size(group(), run, starting_batch_size);
  }

  /// Forgets all prepared objects and the position in the accumulation window, and returns cached memory of the
  /// allocator to the device. Existing handles stay usable, but their gradients are no longer reduced: call prepare()
  /// again before further training.
  void free_memory();
  /// Same as free_memory(); Hugging Face Accelerate has both names.
  void clear() { free_memory(); }

  // The step ----------------------------------------------------------------------------------------------------------
  /// Runs loss.backward() with the loss divided by gradient_accumulation_steps (in a short last window: by its length).
  /// On several ranks, this rank also joins the reductions of prepared models that are not part of the graph.
  ///
  /// With mixed_precision fp16 the loss is also multiplied by the loss scale. The gradients contain the scale until the
  /// Accelerator's clip_grad_norm_() or the prepared optimizer's step() unscales them. LibTorch's clip_grad_norm_()
  /// does not unscale: it clips the gradients to almost zero, which cannot be detected.
  ///
  /// \param loss  Scalar.
  /// \throws Error (data) if the loss is NaN and stop_at_nan_loss is true.
  /// \throws Error (usage) if a parameter changed since the last backward while its gradient contained the scale, or,
  ///   with one rank, inside an accumulation window: an optimizer stepped that is not prepared.
  /// \throws Error (usage) if a loader yielded another batch since the last backward in the same accumulate() scope,
  ///   and the scope was opened outside the loop.
  void backward(const at::Tensor& loss, bool retain_graph = false);
  /// For losses that are sums. At the end of the accumulation window, the gradients are those of the mean over all
  /// samples or tokens of the window on all ranks, independent of their distribution over ranks and micro-batches. The
  /// last backward of a window is collective because it adds up the counts of all ranks; the other backwards do not
  /// block. All losses of a window must use the same unit, and each micro-batch has exactly one loss. If the total
  /// count is 0, the gradients are set to zero.
  ///
  /// \param loss   Scalar: the sum over the samples or tokens of this micro-batch on this rank, not the mean.
  /// \param count  Their number: {.samples = n} or {.tokens = n}.
  void backward(const at::Tensor& loss, const LossCount& count, bool retain_graph = false);

  /// Returns a scope in which operations compute in the precision of prepared models' forward. With mixed_precision no
  /// it has no effect. With {.enabled = false}, operations inside an outer autocast scope compute in the dtypes of
  /// their inputs. Prepared models always use their own policy.
  [[nodiscard]] precision::Autocast autocast(const AutocastOptions& options = {}) const {
    return precision::Autocast(prepared::autocast_region(*accelerator_state_, options.enabled, options.cache_enabled));
  }
  /// Returns the compute precision of prepared models.
  [[nodiscard]] Precision mixed_precision() const { return mixed_precision_; }

  /// Starts one micro-batch. Inside an accumulation window, prepared optimizers and schedulers do not step and, with
  /// several ranks, the gradients of the given models stay local. Without arguments this applies to all models.
  ///
  /// Call it once per micro-batch, in the body of the loop; zero_grad() may be called first or last in it. A
  /// scope may contain several backwards, of several models or of parts of a batch. If the loop exits inside a window,
  /// the window stays open: the next accumulate() continues it, and prepared optimizers do not step until it ends.
  /// set_sync_gradients(true) or free_memory() ends it at once. Optimizers that are not prepared ignore windows: step
  /// them only if sync_gradients() is true.
  template <typename... Models>
  [[nodiscard]] prepared::AccumulateGuard accumulate(const Models&... models) {
    return {accelerator_state_, models_of(models...)};
  }
  /// While the guard is alive, gradients of the given models stay local. Without arguments this applies to all models.
  template <typename... Models>
  [[nodiscard]] prepared::NoSyncGuard no_sync(const Models&... models) const {
    return prepared::NoSyncGuard(models_of(models...));
  }
  /// Makes the next backward reduce the gradients even if its forward ran inside no_sync().
  template <typename Model>
  void trigger_sync_in_backward(const PreparedModel<Model>& model) {
    model.core().trigger_sync();
  }
  /// Returns a scope in which ranks may have different numbers of batches (with even_batches off, or with streams). A
  /// rank that leaves the scope or calls finish() joins the reductions of the other ranks until all have finished.
  /// Parameters and schedulers are equal on all ranks afterwards. Collective.
  template <typename... Models>
  [[nodiscard]] gradient::UnevenJoin join_uneven_inputs(const Models&... models) const {
    prepared::refuse_with_sharding(*accelerator_state_, "join_uneven_inputs",
                                   "a rank without batches does not join the other ranks' optimizer steps");
    prepared::refuse_pipelines(*accelerator_state_, models_of(models...), "join_uneven_inputs",
                               "a rank without batches does not join the other ranks' steps");
    auto list = prepared::join_models(models_of(models...));
    auto group = accelerator_state_->group.duplicate();
    if (accelerator_state_->scaling) list.push_back(accelerator_state_->scaling->join_model(group));
    return {std::move(group), std::move(list), {}, prepared::schedules_with_same_state(accelerator_state_)};
  }
  /// Local SGD for one model. Call step() of the returned object after each optimizer step.
  ///
  /// \param steps  Number of optimizer steps between two averages of the parameters.
  template <typename Model>
  [[nodiscard]] prepared::LocalSgd local_sgd(const PreparedModel<Model>& model, int64_t steps) const {
    return prepared::LocalSgd(accelerator_state_, model.core_ptr(), steps);
  }

  /// Wraps a training step for capture and replay as a CUDA graph. The first calls are warm-up calls that run the
  /// function directly. Then forward, backward, all-reduce, unscaling, clipping and optimizer updates are captured once
  /// and replayed with new inputs. On the CPU, and if the step cannot be captured, every call runs the function
  /// directly; GraphedStep::not_captured_reason() returns the reason. GraphedStep lists the restrictions on the
  /// function.
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
    return {std::move(function), std::make_shared<prepared::GraphedStepCore>(accelerator_state_, options,
                                                                             accelerator_state_->stop_at_nan_loss)};
  }

  /// Scales the gradients so that their total norm is at most max_norm. Inside an accumulation window nothing is
  /// scaled. Each element of the whole model counts once in the norm. The norm covers all ranks with shards, with parts
  /// of tensor parallel layers and with stages of an nn::Pipeline. The call is collective over these ranks.
  ///
  /// \param parameters  Parameters of prepared models. If all parameters of one model are given, its flat buckets are
  ///   scaled by a few operations. A parameter that is listed twice (a shared weight) counts once.
  /// \param norm_type   p of the p-norm, above 0; infinity for the largest absolute value.
  /// \param error_if_nonfinite  If true, an infinite or NaN norm is an error and nothing is scaled. The host then waits
  ///   for the device.
  /// \returns a 0-dim tensor on the device with the norm before clipping. The host does not wait for it.
  /// \throws Error (data) with the name of the parameter if error_if_nonfinite is true and the norm is not finite.
  at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2.0,
                             bool error_if_nonfinite = false);
  /// Clamps every gradient element to [-clip_value, clip_value]. Inside an accumulation window nothing is clamped.
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);
  /// As above, for all parameters of the model.
  /// \throws Error (usage) also if free_memory() has released an nn::Pipeline over several ranks.
  template <typename Model>
  at::Tensor clip_grad_norm_(const PreparedModel<Model>& model, double max_norm, double norm_type = 2.0,
                             bool error_if_nonfinite = false) {
    prepared::refuse_released_stages(*accelerator_state_, model.core(), "clip_grad_norm_");
    return clip_grad_norm_(model.parameters(), max_norm, norm_type, error_if_nonfinite);
  }
  /// As above, for all parameters of the model.
  template <typename Model>
  void clip_grad_value_(const PreparedModel<Model>& model, double clip_value) {
    clip_grad_value_(model.parameters(), clip_value);
  }

  /// Divides gradients by the loss scale if they still contain it. Clipping and stepping do this automatically. Has no
  /// effect without fp16 and inside an accumulation window.
  void unscale_gradients();
  /// As above, for the gradients of one optimizer.
  template <typename Optimizer>
  void unscale_gradients(const PreparedOptimizer<Optimizer>& optimizer) {
    if (accelerator_state_->scaling && sync_gradients()) accelerator_state_->scaling->unscale(optimizer.core());
  }
  /// With mixed_precision fp16: true if the last step of any optimizer was skipped because a gradient was inf or NaN.
  /// PreparedOptimizer::step_was_skipped() returns this for one optimizer. The host waits for the device.
  [[nodiscard]] bool optimizer_step_was_skipped() const;
  /// Returns the current loss scale; 1 without fp16. The host waits for the device.
  [[nodiscard]] double loss_scale() const;
  /// Returns the loss scale and its growth counter, for saving (accelerate/precision/scaler_state_json.hpp). The host
  /// waits for the device.
  /// \throws Error (usage) without fp16.
  [[nodiscard]] precision::ScalerState scaler_state() const;
  /// \throws Error (usage) without fp16.
  void load_scaler_state(const precision::ScalerState& state);

  /// True if the current micro-batch ends its accumulation window, so that prepared optimizers step.
  [[nodiscard]] bool sync_gradients() const { return accelerator_state_->window.ends; }
  /// If true, ends the accumulation window now. If false, the current micro-batch does not end it.
  void set_sync_gradients(bool sync) {
    sync ? accelerator_state_->window.close_window_early() : accelerator_state_->window.continue_window();
  }
  /// Makes the gradients of all prepared objects undefined and discards the current accumulation window, to restart a
  /// loop after an exception. Inside a window, zero_grad() keeps gradients.
  void drop_gradients();
  [[nodiscard]] int64_t gradient_accumulation_steps() const { return accelerator_state_->window.options.steps; }
  /// Call it before load_state() of a checkpoint that was saved inside a window, with the value used at that time.
  void set_gradient_accumulation_steps(int64_t steps);

  // Logging and profiling ---------------------------------------------------------------------------------------------
  /// Returns a logger for log lines of the program: "[rank 0] ...".
  [[nodiscard]] Logger logger(const LoggerOptions& options = {}) const {
    return {process_index(), num_processes(), [group = group()] { job::barrier_for_call(group, "logger.in_order"); },
            options};
  }
  /// Returns memory figures of this rank without waiting for the device.
  [[nodiscard]] MemoryFigures memory() const { return profile::memory_figures(device()); }
  /// Resets the peak memory figures.
  void reset_peak_memory() const { profile::reset_peak_memory(device()); }
  /// Starts a profiler that records operators until stop(). With a schedule, it records only the scheduled steps.
  [[nodiscard]] Profiler profile(const ProfileOptions& options = {}) const { return {options, group(), device()}; }

  // Random numbers ----------------------------------------------------------------------------------------------------
  using SeedOptions = device::SeedOptions;
  /// Seeds the default CPU and GPU generators of this rank. With device_specific, ranks with other samples or other
  /// parts of a sequence get different seeds, so that their dropout differs; ranks of one tensor or pipeline parallel
  /// group always get the same. Parameters are equal after prepare() in any case, because rank 0 broadcasts them.
  void set_seed(uint64_t seed, const SeedOptions& options = {}) const;
  /// Broadcasts the generator states of rank 0 to all ranks. Collective.
  void synchronize_rng_states() const;

 private:
  Accelerator(const job::JobContext& job, const AcceleratorOptions& options);
  Accelerator(const job::JobContext& job, const std::shared_ptr<prepared::AcceleratorState>& shared,
              const AcceleratorOptions& options);

  template <typename... Models>
  std::vector<std::shared_ptr<prepared::ModelCore>> models_of(const Models&... models) const {
    if constexpr (sizeof...(Models) == 0) {
      return accelerator_state_->registry.list<prepared::ModelCore>();
    } else if constexpr (prepared::check_prepared<Models...>()) {
      return {models.core_ptr()...};
    } else {
      return {};
    }
  }
  /// Checks the loss, and the events since the last backward.
  void begin_backward(const at::Tensor& loss);
  /// \param weight  Factor of the loss.
  void weighted_backward(const at::Tensor& loss, double weight, bool retain_graph);
  [[nodiscard]] prepared::LossScaling& scaling(std::string_view operation) const;

  prepared::PrepareOptions options_;
  Precision mixed_precision_ = Precision::no;
};

/// Runs main on num_processes threads, one rank each, to simulate a job in one process for tests and experiments. An
/// Accelerator created inside main belongs to that thread's rank. Returns after all threads have ended, and rethrows
/// the first exception. The ranks share LibTorch's default generators: which numbers a rank draws depends on timing,
/// also after set_seed().
using job::simulate;

/// Detection of preemption signals, and the exit code that requests a restart.
using job::PreemptionGuard;
using job::resume_exit_code;
/// Lists the GPUs of this machine.
using profile::devices;

/// Seeds this rank before an Accelerator exists, so that parameters created afterwards are equal on all ranks.
using job::set_seed;

}  // namespace accelerate

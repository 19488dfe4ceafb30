// SPDX-License-Identifier: Apache-2.0
// The facade: it holds the rooms' objects and forwards; no algorithm lives here.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/device/seed.hpp"
#include "accelerate/gradient/uneven_join.hpp"
#include "accelerate/job/batch_size.hpp"
#include "accelerate/job/process_control.hpp"
#include "accelerate/job/random_states.hpp"
#include "accelerate/job/start.hpp"
#include "accelerate/job/stop_notice.hpp"
#include "accelerate/nn/convert.hpp"
#include "accelerate/options.hpp"
#include "accelerate/precision/autocast.hpp"
#include "accelerate/prepared/checkpointing.hpp"
#include "accelerate/prepared/dtypes.hpp"
#include "accelerate/prepared/graphed_step.hpp"
#include "accelerate/prepared/guards.hpp"
#include "accelerate/prepared/local_sgd.hpp"
#include "accelerate/prepared/loss_scaling.hpp"
#include "accelerate/prepared/metrics.hpp"
#include "accelerate/prepared/prepare.hpp"
#include "accelerate/profile/devices.hpp"
#include "accelerate/profile/memory.hpp"
#include "accelerate/profile/profiler.hpp"
#include "accelerate/tracking/logger.hpp"
#include "accelerate/tracking/tensors/convert.hpp"
#include "accelerate/tracking/trackers.hpp"
#include "accelerate/tree/collectives.hpp"
#include "accelerate/tree/split.hpp"
#include "accelerate/tree/tree.hpp"

namespace accelerate {

using checkpoint::SaveOptions;
using checkpoint::WeightsOptions;
using checkpoint::WhenBusy;
using prepared::GraphedStep;
using prepared::GraphOptions;
using prepared::LoadedModel;
using prepared::LoadedState;
using prepared::LoadOptions;
using prepared::LossCount;
using prepared::PreparedLoader;
using prepared::PreparedModel;
using prepared::PreparedOptimizer;
using prepared::PreparedScheduler;
using profile::MemoryFigures;
using profile::ProfileOptions;
using profile::Profiler;
using profile::ProfileSchedule;
using tracking::Logger;
using tracking::LoggerOptions;
using tracking::Tracker;

/// Finds out where it runs and makes one training loop run there: one process or many, CPU or GPU.
///
/// Several may live in one process. Not copyable; objects it prepared may outlive it.
class Accelerator {
 public:
  explicit Accelerator(const AcceleratorOptions& options = {});
  /// On a group that exists already (ranks as threads, a part of a job): backend, timeout and debug are that group's.
  Accelerator(comm::Group group, const AcceleratorOptions& options);
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;
  Accelerator(Accelerator&&) = default;
  Accelerator& operator=(Accelerator&&) = default;

  // Who and where -----------------------------------------------------------------------------------------------------
  [[nodiscard]] int64_t num_processes() const { return shared_->group.size(); }
  [[nodiscard]] int64_t process_index() const { return shared_->group.rank(); }
  [[nodiscard]] int64_t local_process_index() const { return process_.local_rank; }
  [[nodiscard]] bool is_main_process() const { return process_index() == 0; }
  [[nodiscard]] bool is_local_main_process() const { return local_process_index() == 0; }
  [[nodiscard]] bool is_last_process() const { return process_index() == num_processes() - 1; }
  [[nodiscard]] bool use_distributed() const { return num_processes() > 1; }
  [[nodiscard]] DistributedType distributed_type() const;
  [[nodiscard]] at::Device device() const { return shared_->device; }
  /// The ranks of the job; its backend() says how they talk.
  [[nodiscard]] const comm::Group& group() const { return shared_->group; }
  [[nodiscard]] const Place& place() const { return shared_->place; }

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

  /// Calls run(batch_size), a tenth less each time, until memory suffices on every rank; returns that size. A run that
  /// fails must leave no collective half done: memory runs out in forward or backward of its own model.
  /// Throws Error (device) when zero is reached; other exceptions pass through.
  int64_t find_executable_batch_size(const std::function<void(int64_t)>& run, int64_t starting_batch_size = 128) const {
    return job::find_executable_batch_size(group(), run, starting_batch_size);
  }

  /// Forgets what was prepared and where accumulation stands. Handles stay usable, but gradients are not averaged any
  /// more: prepare again what goes on training.
  void free_memory();
  /// free_memory(), by the other name it has in Hugging Face Accelerate.
  void clear() { free_memory(); }

  // The step ----------------------------------------------------------------------------------------------------------
  /// loss   scalar
  /// Runs loss.backward() with the loss divided by gradient_accumulation_steps (a short last window: by its length),
  /// and lets this rank join the reduction of models that its graph does not reach.
  ///
  /// With mixed_precision fp16 the loss is scaled too: gradients carry the scale until they are clipped or stepped on.
  /// Throws Error (data) for a NaN loss where stop_at_nan_loss asks for it.
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
  /// Call it once per micro-batch; zero_grad() may come first or last in it. A loop that is left within a window leaves
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
  /// calls its finish(), takes part in the others' reductions until all have left; parameters then are equal.
  /// Collective.
  template <typename... Models>
  [[nodiscard]] gradient::UnevenJoin join_uneven_inputs(const Models&... models) const {
    auto list = prepared::join_models(models_of(models...));
    auto group = shared_->group.duplicate();
    if (shared_->scaling) list.push_back(shared_->scaling->join_model(group));
    return {std::move(group), std::move(list)};
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
  /// parameters   all of one prepared model: its flat buckets are scaled, a few operations in all
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
  void set_sync_gradients(bool sync) { shared_->window.ends = sync; }
  [[nodiscard]] int64_t gradient_accumulation_steps() const { return shared_->window.options.steps; }
  void set_gradient_accumulation_steps(int64_t steps);

  // Checkpoints -------------------------------------------------------------------------------------------------------
  /// Saves models, optimizers, schedules, loaders, the loss scale, random states, where accumulation stands and what
  /// was registered, in a folder that is there as a whole or not at all. Between steps: gradients are saved within an
  /// open accumulation window only. Hugging Face Accelerate's load_state() reads it, too. Collective.
  ///
  /// folder    replaced if it is a checkpoint; empty: project.project_dir/checkpoints/checkpoint_N, N one more than the
  ///           highest there, of which project.total_limit stay
  /// returns   it; nothing where an asynchronous save was skipped
  /// Throws Error (io, usage) on every rank, and leaves what was there.
  std::optional<std::filesystem::path> save_state(const std::filesystem::path& folder = {},
                                                  const SaveOptions& options = {}) {
    return checkpointing_->save_state(folder, options);
  }
  /// Everything becomes what was saved: call it when the same objects have been prepared in the same order, outside of
  /// loops over loaders. The next pass over a loader goes on where it stood. Also with another number of ranks, and
  /// with folders of Hugging Face Accelerate. Collective.
  ///
  /// folder    of a checkpoint, or one that holds checkpoint_N: the newest that is whole; empty:
  /// project_dir/checkpoints Throws Error: io and data for what cannot be read or is not whole, usage and data where it
  /// does not fit what is prepared; then nothing is changed.
  LoadedState load_state(const std::filesystem::path& folder = {}, const LoadOptions& options = {}) {
    return checkpointing_->load_state(folder, options);
  }
  /// Until an asynchronous save is done. Throws its error. Collective.
  void wait_for_checkpoint() { checkpointing_->wait(); }

  /// Weights alone, for others to read: model.safetensors, or several files and an index. The main process writes them,
  /// with save_on_each_node one process of each machine. Collective.
  template <typename Model>
  void save_model(const PreparedModel<Model>& model, const std::filesystem::path& folder,
                  const WeightsOptions& options = {}) {
    checkpointing_->save_model(model.core(), folder, options);
  }
  /// path     a .safetensors file, one of torch.save, an index, or a folder of these
  /// strict   names must meet exactly; shapes must in any case
  /// returns  names that did not meet
  /// Throws Error (data) with all of them; then nothing is changed. Collective.
  template <typename Model>
  LoadedModel load_model(const PreparedModel<Model>& model, const std::filesystem::path& path, bool strict = true) {
    return checkpointing_->load_model(model.core(), path, strict);
  }
  /// Tensors as a file, written by the same: safetensors by its name, else one that torch.load reads. Collective.
  void save(const prepared::TensorDict& tensors, const std::filesystem::path& path) {
    checkpointing_->save(prepared::named(tensors), path);
  }
  /// Tensors of such a file, on the CPU; they may lie in the mapped file.
  [[nodiscard]] static prepared::TensorDict load(const std::filesystem::path& path);

  /// Objects that are saved and loaded with the rest, in this order: with state_dict() and load_state_dict() of tensors
  /// by name, or state() and load_state() of a std::string. Shared pointers and what is moved in are kept, other
  /// objects referenced.
  template <typename... Objects>
  void register_for_checkpointing(Objects&&... objects) {
    prepared::check_all_checkpointable<Objects...>();
    (checkpointing_->add_custom(prepared::custom_object(prepared::custom_pointer(std::forward<Objects>(objects)))),
     ...);
  }
  /// Called by save_state() with the folder in the making, where it may put files, on every rank.
  prepared::HookHandle register_save_state_pre_hook(prepared::StateHook hook) {
    return checkpointing_->add_save_hook(std::move(hook));
  }
  /// Called by load_state() with the folder, before anything is changed, on every rank.
  prepared::HookHandle register_load_state_pre_hook(prepared::StateHook hook) {
    return checkpointing_->add_load_hook(std::move(hook));
  }

  // Together ----------------------------------------------------------------------------------------------------------
  /// Values are tensors or pairs, tuples, vectors, maps and structs of them (see tree/README.md).
  /// gather: [n_r, ...] of each rank to [sum n_r, ...] on every rank; 0-dim counts as [1].
  template <typename Value>
  [[nodiscard]] Value gather(const Value& value) const {
    return tree::gather(value, shared_->group);
  }
  /// gather, without the samples that were repeated to fill the last batch of the loader whose loop is open.
  template <typename Value>
  [[nodiscard]] Value gather_for_metrics(const Value& value) const {
    return prepared::cut_to_real(*shared_, tree::gather(value, shared_->group, "gather_for_metrics"));
  }
  /// The same for objects as bytes, one per sample of this rank's batch.
  [[nodiscard]] std::vector<std::string> gather_for_metrics(const std::vector<std::string>& objects) const {
    return prepared::gather_objects_for_metrics(*shared_, objects);
  }
  /// scale   the result is multiplied by it
  template <typename Value>
  [[nodiscard]] Value reduce(const Value& value, comm::ReduceOp op = comm::ReduceOp::sum, double scale = 1.0) const {
    return tree::reduce(value, shared_->group, op, scale);
  }
  /// reduction   "sum", "mean", "max", "min" or "product"
  template <typename Value>
  [[nodiscard]] Value reduce(const Value& value, std::string_view reduction, double scale = 1.0) const {
    return reduce(value, prepared::reduce_op_of(reduction, place()), scale);
  }
  /// In place, as torch.distributed does; also returned.
  template <typename Value>
  Value broadcast(const Value& value, int64_t from_process = 0) const {
    return tree::broadcast(value, shared_->group, from_process);
  }
  template <typename Value>
  [[nodiscard]] Value pad_across_processes(const Value& value, const tree::PadOptions& options = {}) const {
    return tree::pad_across_processes(value, shared_->group, options);
  }
  /// Bytes of every rank, on every rank, in rank order.
  [[nodiscard]] std::vector<std::string> gather_object(std::string_view bytes) const;
  [[nodiscard]] std::string broadcast_object(std::string_view bytes, int64_t from_process = 0) const;
  /// Each of them from that rank; every rank gives as many.
  [[nodiscard]] std::vector<std::string> broadcast_object_list(std::vector<std::string> objects,
                                                               int64_t from_process = 0) const;
  /// This rank's part of a vector, tensor or map of them; the first ranks get one more. apply_padding: all the same
  /// number, the last element repeated.
  template <typename Value>
  [[nodiscard]] Value split_between_processes(const Value& inputs, bool apply_padding = false) const {
    return tree::split_between_processes(inputs, process_index(), num_processes(), apply_padding);
  }
  void wait_for_everyone() const { job::wait_in_turn(shared_->group, "wait_for_everyone"); }

  /// Any rank may set it; check_trigger() is then true once on every rank. Every rank calls check_trigger().
  void set_trigger() { trigger_ = true; }
  [[nodiscard]] bool check_trigger();

  /// The main process runs it before the others do (local: of this machine).
  template <std::invocable Function>
  void main_process_first(Function&& function) const {
    job::first(shared_->group, "main_process_first", is_main_process(), std::forward<Function>(function));
  }
  template <std::invocable Function>
  void local_main_process_first(Function&& function) const {
    job::first(shared_->group, "local_main_process_first", is_local_main_process(), std::forward<Function>(function));
  }
  template <std::invocable Function>
  void on_main_process(Function&& function) const {
    if (is_main_process()) function();
  }
  template <std::invocable Function>
  void on_local_main_process(Function&& function) const {
    if (is_local_main_process()) function();
  }
  template <std::invocable Function>
  void on_last_process(Function&& function) const {
    if (is_last_process()) function();
  }
  template <std::invocable Function>
  void on_process(int64_t process_index, Function&& function) const {
    if (this->process_index() == process_index) function();
  }
  template <std::invocable Function>
  void on_local_process(int64_t local_process_index, Function&& function) const {
    if (this->local_process_index() == local_process_index) function();
  }
  /// To stdout, once on each machine.
  template <typename... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) const {
    if (is_local_main_process()) write_stdout(fmt::format(format, std::forward<Args>(args)...));
  }

  // Seeing it ---------------------------------------------------------------------------------------------------------
  /// Begins a run of the trackers in log_with, in the folder <logging_dir>/<project_name>; one that runs ends. config:
  /// what the run was configured with, {{"lr", 1e-3}, {"net", "basic"}}. What is logged is kept by the main process
  /// alone, unless a tracker of one's own says otherwise; every rank may call all of this.
  /// Throws Error: usage for a name that is no folder's, io for a folder that cannot be written.
  void init_trackers(const std::string& project_name, const tracking::Values& config = {}) {
    trackers_.start(project_name, config);
  }
  /// {{"loss", loss}, {"epoch", 3}}: numbers, texts, tensors of one element (whose device is waited for) and groups of
  /// numbers. A tracker that fails is named in the log, once, and stops nothing.
  void log(const tracking::Values& values, tracking::Step step = {}) { trackers_.log(values, step); }
  void log_text(const std::string& name, const std::string& text, tracking::Step step = {}) {
    trackers_.log_text(name, text, step);
  }
  /// images   [N, C, H, W], [C, H, W] or [H, W], C of 1 to 4, of bytes or of floating point from 0 to 1
  void log_images(const std::string& name, const at::Tensor& images, tracking::Step step = {}) {
    tracking::log_images(trackers_, name, images, step, place());
  }
  void log_histogram(const std::string& name, const at::Tensor& values, tracking::Step step = {}) {
    tracking::log_histogram(trackers_, name, values, step);
  }
  /// One of log_with; where it does not run, one that keeps nothing.
  /// Throws Error (usage), naming those there are.
  [[nodiscard]] std::shared_ptr<Tracker> get_tracker(std::string_view name) const { return trackers_.get(name); }
  /// The trackers' run is over. It also is when the Accelerator goes.
  void end_training() { trackers_.finish(); }

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
  Accelerator(job::Job job, const AcceleratorOptions& options);

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
  static void write_stdout(std::string_view text);
  void check_loss(const at::Tensor& loss);
  /// weight   what the loss is multiplied by
  void weighted_backward(const at::Tensor& loss, double weight, bool retain_graph);
  [[nodiscard]] prepared::LossScaling& scaling(std::string_view asked_by) const;

  env::ProcessEnv process_;
  prepared::PrepareOptions options_;
  Precision mixed_precision_ = Precision::no;
  std::shared_ptr<prepared::Shared> shared_;
  std::unique_ptr<prepared::Checkpointing> checkpointing_;
  tracking::Trackers trackers_;
  bool trigger_ = false;
  bool stop_at_nan_loss_ = false;
  int64_t backwards_ = 0;
};

/// Runs main on num_processes threads, each a rank of its own: `Accelerator accelerator;` made within is that rank's.
/// A simulation of a job in one process, for tests and for trying things out. The first rank's exception is rethrown.
using job::simulate;

/// A signal that says that the job is to end, and the code that asks to be started again.
using job::resume_exit_code;
using job::StopNotice;
/// The GPUs of this machine.
using profile::devices;

/// Seeds this rank before there is an Accelerator: parameters made after it are alike on all ranks.
using job::set_seed;

}  // namespace accelerate

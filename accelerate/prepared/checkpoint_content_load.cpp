// SPDX-License-Identifier: Apache-2.0
// Compares a checkpoint with the prepared objects and loads it.
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "accelerate/base/log.hpp"
#include "accelerate/checkpoint/file_names.hpp"
#include "accelerate/optim/optimizer_state.hpp"
#include "accelerate/prepared/checkpoint_content.hpp"
#include "accelerate/prepared/guards.hpp"
#include "accelerate/prepared/loader.hpp"
#include "accelerate/prepared/loss_scaling.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/named_optimizer_state.hpp"
#include "accelerate/prepared/optimizer.hpp"
#include "accelerate/prepared/scheduler.hpp"
#include "accelerate/prepared/sharded_customs.hpp"
#include "accelerate/prepared/split_state.hpp"
#include "accelerate/prepared/stage_names.hpp"

namespace accelerate::prepared {

using checkpoint::CheckpointContent;

namespace {

optim::StateDtype state_dtype(AcceleratorState& shared) {
  return [&shared](const at::Tensor& parameter) {
    const bool has_master = shared.masters.has(parameter) || sharding_of_master(shared, parameter) != nullptr;
    return has_master ? c10::ScalarType::Float : parameter.scalar_type();
  };
}

bool saved_on_this_mesh(const AcceleratorState& shared, const checkpoint::CheckpointReader& read) {
  return read.manifest && read.manifest->world_size == shared.mesh.world.size() &&
         read.manifest->mesh == shared.mesh.text();
}

// "4 ranks", or "4 ranks (dp_replicate 2 x tp 2)".
std::string ranks_text(int64_t world_size, const std::string& mesh) {
  return fmt::format("{} {}{}", world_size, world_size == 1 ? "rank" : "ranks", mesh.empty() ? "" : " (" + mesh + ")");
}

template <typename Core>
int64_t count(AcceleratorState& shared) {
  return static_cast<int64_t>(shared.registry.list<Core>().size());
}

/// A scheduler without a saved state would treat the loaded learning rates as its initial ones.
void check_schedules(AcceleratorState& shared, const CheckpointContent& content) {
  for (const SchedulerCore& scheduler : shared.registry.of<SchedulerCore>()) {
    const auto index = static_cast<size_t>(scheduler.index());
    if (index < content.schedulers.size() && content.schedulers[index]) continue;
    const auto now = scheduler.access.get();
    if (!now) continue;  // its state cannot be read, so it was not saved either
    base::fail(ErrorKind::usage, shared.place, "load_state",
               "the checkpoint has no position of scheduler {}, {}; prepare the same objects as when it was saved, "
               "in the same order, and create a new schedule after load_state()",
               index, now->name);
  }
}

void check_counts(AcceleratorState& shared, const std::vector<CustomObject>& customs,
                  const checkpoint::CheckpointReader& read) {
  const auto check = [&](std::string_view what, size_t saved, int64_t here) {
    if (static_cast<int64_t>(saved) == here) return;
    base::fail(ErrorKind::usage, shared.place, "load_state",
               "the checkpoint has {} {}, {} {} here; prepare the same objects as when it was saved, in the same order",
               saved, what, here, what == "registered objects" ? "are registered" : "are prepared");
  };
  const CheckpointContent& content = read.content;
  check("models", content.models.size(), count<ModelCore>(shared));
  check("optimizers", content.optimizers.size(), count<OptimizerCore>(shared));
  check("registered objects", content.customs.size(), static_cast<int64_t>(customs.size()));
  const auto at_most = [&](std::string_view what, size_t saved, int64_t here) {
    if (static_cast<int64_t>(saved) > here) check(what, saved, here);
  };
  at_most("schedulers", content.schedulers.size(), count<SchedulerCore>(shared));
  check_schedules(shared, content);
  at_most("loaders", content.loaders.size(), count<LoaderCore>(shared));
  if (content.scaler && shared.scaling) static_cast<void>(shared.scaling->scaler().loadable(*content.scaler));
  if (content.scaler && !shared.scaling) {
    base::log_once(base::LogLevel::warning, shared.place,
                   "load_state: the checkpoint has a loss scale, and this job computes without one");
  }
}

void check_length(const AcceleratorState& shared, const checkpoint::OpenWindow& window) {
  const int64_t here = shared.window.options.steps;
  if (window.of == 0 || window.of == here) return;
  base::fail(ErrorKind::usage, shared.place, "load_state",
             "the checkpoint was saved after {} of the {} micro-batches of an accumulation window, and "
             "gradient_accumulation_steps is {} here; set it to {}, or load one that was saved while sync_gradients() "
             "was true",
             window.micro_batches, window.of, here, window.of);
}

void check_window(const AcceleratorState& shared, const checkpoint::CheckpointReader& read) {
  if (!read.content.window) return;
  if (saved_on_this_mesh(shared, read)) {
    if (read.has_own_part) return check_length(shared, *read.content.window);
    base::fail(ErrorKind::usage, shared.place, "load_state",
               "the checkpoint was saved within an accumulation window, and this rank's gradients are not in its "
               "folder; start the ranks on the machines where they were, or load one that was saved while "
               "sync_gradients() was true");
  }
  const auto saved_by =
      ranks_text(read.manifest ? read.manifest->world_size : 0, read.manifest ? read.manifest->mesh : "");
  base::fail(ErrorKind::usage, shared.place, "load_state",
             "the checkpoint was saved by {} within an accumulation window, and its gradients belong to single ranks; "
             "resume with {} instead of {}, or load one that was saved while sync_gradients() was true",
             saved_by, saved_by, ranks_text(shared.mesh.world.size(), shared.mesh.text()));
}

void resume_window(AcceleratorState& shared, const CheckpointContent& content) {
  const checkpoint::OpenWindow none;
  const auto& window = content.window ? *content.window : none;
  drop_gradients(shared);
  shared.window.resume({.step = content.accumulated, .window = window.micro_batches},
                       WindowCount(static_cast<LossUnit>(window.loss_unit), window.count, window.undivided));
  // Gradients of an fp16 job contain its loss scale. They get this job's scale, which is the loaded one if both jobs
  // use fp16.
  const double carried = content.scaler ? content.scaler->scale : 1.0;
  const double due = shared.scaling && !window.gradients.empty() ? shared.scaling->scaler().state().scale : 1.0;
  std::unordered_map<std::string_view, const at::Tensor*> gradients;
  for (const auto& [name, tensor] : window.gradients) gradients.emplace(name, &tensor);
  for (ModelCore& model : shared.registry.of<ModelCore>()) {
    for (const auto& [name, parameter] : model.parameters()) {
      const auto found = gradients.find(name_in(model, name));
      if (found == gradients.end() || found->second->sizes() != parameter.sizes()) continue;
      at::Tensor gradient = at::empty_like(parameter.detach());
      gradient.copy_(*found->second);
      if (due != carried) gradient.mul_(due / carried);
      parameter.mutable_grad() = std::move(gradient);
    }
  }
  if (shared.scaling && !gradients.empty()) shared.scaling->backward_done();
}

/// \param optimizers_are_loaded  If true, the learning rates of the loaded optimizers are kept, as in PyTorch, instead
/// of those that each scheduler set in its last step. Other schedulers of the same optimizer, or the user, may have
/// changed them since.
void load_schedulers(AcceleratorState& shared, const std::vector<std::optional<state::SchedulerState>>& all,
                     bool optimizers_are_loaded) {
  for (SchedulerCore& scheduler : shared.registry.of<SchedulerCore>()) {
    const auto index = static_cast<size_t>(scheduler.index());
    if (index >= all.size() || !all[index]) continue;
    auto saved = *all[index];
    if (const auto now = scheduler.access.get()) {  // PyTorch's files omit some fields
      if (saved.name.empty()) saved.name = now->name;
      if (saved.base_lrs.empty()) saved.base_lrs = now->base_lrs;
      const bool from_optimizer = optimizers_are_loaded && optimizer_of(shared, scheduler) != nullptr;
      if (from_optimizer) saved.last_lrs = now->last_lrs;
      if (from_optimizer || saved.momenta.empty()) saved.momenta = now->momenta;
    }
    scheduler.access.set(saved);
  }
}

// If all ranks have rank 0's buffers, a broadcast before the next forward is always correct.
void resume_buffers(AcceleratorState& shared, const checkpoint::CheckpointReader& read) {
  const auto& local = read.content.local_buffers;
  for (ModelCore& model : shared.registry.of<ModelCore>()) {
    const bool is_local = saved_on_this_mesh(shared, read) && std::ranges::find(local, model.index()) != local.end();
    model.resume_buffers(/*next_forward_broadcasts=*/!is_local);
  }
}

void load_models(AcceleratorState& shared, const ValidatedLoad& fit) {
  std::unordered_map<std::string_view, const at::Tensor*> masters;
  for (const auto& [name, master] : fit.read.content.masters) masters.emplace(name, &master);
  std::unordered_map<std::string_view, const at::Tensor*> own;
  if (saved_on_this_mesh(shared, fit.read)) {
    for (const auto& [name, buffer] : fit.read.content.buffers) own.emplace(name, &buffer);
  }
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    auto pairs = fit.models[static_cast<size_t>(model.index())].pairs;
    for (auto& pair : pairs) {
      const auto fitting = [&](const std::unordered_map<std::string_view, const at::Tensor*>& tensors) {
        const auto found = tensors.find(name_in(model, pair.name));
        const bool fits = found != tensors.end() && found->second->sizes() == pair.saved.sizes();
        return fits ? found->second : nullptr;
      };
      if (const auto* buffer = fitting(own)) pair.saved = *buffer;
      // The master has the most bits. A job with masters may resume as one without, and the other way round.
      if (const auto* master = fitting(masters)) pair.saved = *master;
    }
    load_pairs(pairs, shared, fit.read.elements);
  }
}

// A custom optimizer wrote its state with its save(), so only its load() can validate it.
void load_optimizers(AcceleratorState& shared, const checkpoint::CheckpointReader& read, bool by_themselves) {
  for (OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    const auto& saved = read.content.optimizers[static_cast<size_t>(optimizer.index())];
    if (saved.own.empty() == by_themselves) continue;
    // skipped steps are keyed by the address of their state, which a new state may reuse
    optimizer.discard_skipped_steps();
    std::ignore = optimizer.parameters_version();  // looks up the models of the parameters
    optim::load_state(
        optimizer.optimizer(), saved, state_dtype(shared), shared.place,
        [&](const at::Tensor& parameter) { return optimizer.state_range_of(parameter); }, read.elements);
  }
}

void load_loaders(AcceleratorState& shared, const std::vector<std::optional<state::LoaderState>>& saved) {
  for (const LoaderCore& loader : shared.registry.of<LoaderCore>()) {
    const auto index = static_cast<size_t>(loader.index());
    if (index < saved.size() && saved[index]) loader.access->set(*saved[index]);
  }
}

const checkpoint::LoaderGenerator* generator_for(const LoaderCore& loader, const CheckpointContent& content) {
  const auto index = static_cast<size_t>(loader.index());
  const bool is_saved = index < content.loader_generators.size() && content.loader_generators[index];
  return loader.order && is_saved ? &*content.loader_generators[index] : nullptr;
}

void check_loader_generators(AcceleratorState& shared, const CheckpointContent& content) {
  for (const LoaderCore& loader : shared.registry.of<LoaderCore>()) {
    const auto* saved = generator_for(loader, content);
    if (saved != nullptr && saved->state.defined()) {
      checkpoint::check_random_state(c10::Device(c10::kCPU), saved->state, shared.place);
    }
  }
}

void load_loader_generators(AcceleratorState& shared, const checkpoint::CheckpointReader& read) {
  for (const LoaderCore& loader : shared.registry.of<LoaderCore>()) {
    if (!loader.order) continue;
    const auto* saved = generator_for(loader, read.content);
    const bool is_within_pass = saved != nullptr && saved->state.defined();
    if (is_within_pass) {
      loader.order->load(
          PassStart{CpuStream::from_tensor(saved->state.flatten().clone()), static_cast<uint64_t>(saved->pass)});
      base::log(base::LogLevel::info, shared.place,
                "load_state: {} was saved within a pass: walk accelerator.skip_first_batches() of it with the number "
                "of batches that were used, and the pass continues in its order",
                loader.name());
      continue;
    }
    loader.order->load(std::nullopt);
    if (saved == nullptr && read.manifest) {
      base::log(base::LogLevel::warning, shared.place,
                "load_state: the checkpoint does not contain the state of the generator at the start of a pass over "
                "{}: a shuffled pass that skips batches has another order; save the checkpoint again with this "
                "version",
                loader.name());
    }
  }
}

// Compression errors belong to one rank. They are dropped if the number of ranks differs or this rank's part is
// missing.
void load_comm_hooks(AcceleratorState& shared, const checkpoint::CheckpointReader& read) {
  const bool own = read.has_own_part && (!read.manifest || saved_on_this_mesh(shared, read));
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    if (model.gradient_reducer() == nullptr) continue;
    gradient::ReducerState state;
    const std::string prefix = name_in(model, "");
    for (const auto& [name, tensor] : read.content.comm_hooks) {
      if (!name.starts_with(prefix)) continue;
      const std::string rest = name.substr(prefix.size());
      if (own || !rest.starts_with("error of ")) state.push_back({rest, tensor});
    }
    if (!state.empty()) model.gradient_reducer()->load_reducer_state(state);
  }
}

void load_random_states(const AcceleratorState& shared, const checkpoint::CheckpointReader& read) {
  if (!read.has_random_states) {
    base::log(base::LogLevel::warning, shared.place, "load_state: the checkpoint has no random states");
  } else if (read.has_own_part) {
    checkpoint::set_random_states(read.content.random, shared.device.type(), shared.place);
  } else {
    checkpoint::derive_stream(read.content.random, shared.group.rank());
  }
}

}  // namespace

std::string missing_file(AcceleratorState& shared, size_t customs, const checkpoint::CheckpointReader& read) {
  const CheckpointContent& content = read.content;
  const auto missing = [](size_t saved, size_t needed, const auto& file_of) {
    return saved < needed ? fmt::format("{} is missing", file_of(static_cast<int64_t>(saved))) : "";
  };
  for (const auto& text :
       {missing(content.models.size(), shared.registry.list<ModelCore>().size(), checkpoint::model_file),
        missing(content.optimizers.size(), shared.registry.list<OptimizerCore>().size(), checkpoint::optimizer_file),
        missing(content.schedulers.size(), shared.registry.list<SchedulerCore>().size(), checkpoint::scheduler_file),
        missing(read.has_random_states ? 1 : 0, 1, [](int64_t) { return checkpoint::random_file(0); }),
        missing(content.customs.size(), customs, checkpoint::custom_file)}) {
    if (!text.empty()) return text;
  }
  return {};
}

ValidatedLoad validate_content(AcceleratorState& shared, const std::vector<CustomObject>& customs,
                               checkpoint::CheckpointReader read,
                               const std::vector<OptimizerParameterNames>& optimizers, const LoadOptions& options) {
  ValidatedLoad fit{.read = std::move(read)};
  check_counts(shared, customs, fit.read);
  check_window(shared, fit.read);
  check_loader_generators(shared, fit.read.content);
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    const auto& saved = fit.read.content.models[static_cast<size_t>(model.index())];
    fit.models.push_back(match_weights(model, saved));
    check_match(fit.models.back(), options.strict, shared.place, "load_state", model.name());
  }
  for (const OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    auto& saved = fit.read.content.optimizers[static_cast<size_t>(optimizer.index())];
    keep_own_stage(shared, optimizer, optimizers[static_cast<size_t>(optimizer.index())], saved);
    number_by_name(shared, optimizer, saved);
    take_own_parts(optimizer, saved, fit.read.elements);
    optim::check_optimizer_state(optimizer.optimizer(), saved, shared.place);
  }
  for (size_t i = 0; i < customs.size(); ++i) {
    auto& saved = fit.read.content.customs[i];
    auto* tensors = std::get_if<checkpoint::NamedTensors>(&saved);
    if (tensors != nullptr && has_pipeline_stages(shared)) {
      if (const auto own = own_tensors(customs[i])) keep_own_stage(shared, *own, *tensors);
    }
    take_own_parts(customs[i], saved, fit.read.elements, shared.place);
    take_own_elements(shared, customs[i], i, saved, fit.read.elements);
    customs[i].check(saved);
  }
  if (fit.read.has_random_states) {
    checkpoint::check_random_states(fit.read.content.random, shared.device.type(), shared.place);
  }
  return fit;
}

PositionRestore::PositionRestore(AcceleratorState& shared) : accelerator_state_(shared) {
  for (const LoaderCore& loader : shared.registry.of<LoaderCore>()) loaders_.push_back(loader.access->get());
  for (const SchedulerCore& scheduler : shared.registry.of<SchedulerCore>()) {
    schedulers_.push_back(scheduler.access.get());
  }
}

void PositionRestore::load(const CheckpointContent& content) {
  load_loaders(accelerator_state_, content.loaders);
  load_schedulers(accelerator_state_, content.schedulers, /*optimizers_are_loaded=*/false);
}

void PositionRestore::undo() {
  load_loaders(accelerator_state_, loaders_);
  load_schedulers(accelerator_state_, schedulers_, /*optimizers_are_loaded=*/false);
}

void load_fallible_state(AcceleratorState& shared, const std::vector<CustomObject>& customs,
                         const checkpoint::CheckpointReader& read) {
  for (size_t i = 0; i < customs.size(); ++i) customs[i].load(read.content.customs[i]);
  load_optimizers(shared, read, /*by_themselves=*/true);
}

void apply_validated(AcceleratorState& shared, const ValidatedLoad& fit) {
  const CheckpointContent& content = fit.read.content;
  load_models(shared, fit);
  resume_buffers(shared, fit.read);
  shared.watch.release_all();
  load_optimizers(shared, fit.read, /*by_themselves=*/false);
  load_schedulers(shared, content.schedulers, /*optimizers_are_loaded=*/true);  // again: they set optimizer options
  if (shared.scaling && content.scaler) shared.scaling->load_state(*content.scaler);
  if (shared.scaling) shared.scaling->steps_replaced();
  shared.steps = content.step;
  resume_window(shared, content);
  load_comm_hooks(shared, fit.read);
  load_random_states(shared, fit.read);
  load_loader_generators(shared, fit.read);
}

}  // namespace accelerate::prepared

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/content.hpp"

#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "accelerate/base/log.hpp"
#include "accelerate/optim/optimizer_state.hpp"
#include "accelerate/prepared/loader.hpp"
#include "accelerate/prepared/loss_scaling.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/optimizer.hpp"
#include "accelerate/prepared/scheduler.hpp"

namespace accelerate::prepared {

using checkpoint::Content;
using checkpoint::NamedTensors;

namespace {

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t most = 10;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), most); ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > most) text += fmt::format(" and {} more", names.size() - most);
  return text;
}

// Pairs of what is there and what it becomes; the model's own order.
struct Matched {
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors{};
  LoadedModel unmet{};
  std::vector<std::string> misshapen{};
};

Matched match(const ModelCore& model, const NamedTensors& saved) {
  std::unordered_map<std::string_view, const at::Tensor*> by_name;
  for (const auto& [name, tensor] : saved) by_name.emplace(name, &tensor);
  Matched matched;
  for (const auto& [name, tensor] : weights_of(model)) {
    const auto found = by_name.find(name);
    if (found == by_name.end()) {
      matched.unmet.missing.push_back(name);
      continue;
    }
    const at::Tensor& other = *found->second;
    by_name.erase(found);
    if (other.sizes() != tensor.sizes()) {
      matched.misshapen.push_back(
          fmt::format("{} ({} saved, {} here)", name, checkpoint::shape_of(other), checkpoint::shape_of(tensor)));
    } else {
      matched.tensors.emplace_back(tensor, other);
    }
  }
  for (const auto& [name, tensor] : saved) {
    if (by_name.contains(name)) matched.unmet.unexpected.push_back(name);
  }
  return matched;
}

void check_match(const Matched& matched, bool strict, const Place& place, std::string_view operation,
                 std::string_view which) {
  std::string told;
  const auto tell = [&](std::string_view what, const std::vector<std::string>& names) {
    if (!names.empty()) told += fmt::format("{}{}: {}", told.empty() ? "" : "; ", what, listed(names));
  };
  if (strict) {
    tell("not saved", matched.unmet.missing);
    tell("saved, but not here", matched.unmet.unexpected);
  }
  tell("of another shape", matched.misshapen);
  if (!told.empty()) {
    base::fail(ErrorKind::data, place, operation, "{} is not the one that was saved: {}{}", which, told,
               strict && matched.misshapen.empty() ? " (strict = false passes over names)" : "");
  }
}

void copy(const Matched& matched) {
  const at::NoGradGuard no_grad;
  for (const auto& [tensor, saved] : matched.tensors) tensor.copy_(saved);
}

optim::StateDtype state_dtype(const Shared& shared) {
  return [&shared](const at::Tensor& parameter) {
    return shared.masters.has(parameter) ? c10::ScalarType::Float : parameter.scalar_type();
  };
}

std::string name_in(const ModelCore& model, const std::string& name) {
  return fmt::format("model.{}/{}", model.index(), name);
}

NamedTensors masters_of(Shared& shared) {
  NamedTensors masters;
  if (shared.masters.empty()) return masters;
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    for (const auto& [name, parameter] : model.parameters()) {
      if (shared.masters.has(parameter)) masters.emplace_back(name_in(model, name), shared.masters.of({parameter})[0]);
    }
  }
  return masters;
}

std::optional<checkpoint::OpenWindow> open_window(Shared& shared) {
  const auto& state = shared.window.state();
  if (state.window == 0) return std::nullopt;
  const WindowCount& count = shared.window.count;
  checkpoint::OpenWindow window{.micro_batches = state.window,
                                .loss_unit = static_cast<int64_t>(count.unit()),
                                .count = count.total(),
                                .undivided = count.undivided()};
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    for (const auto& [name, parameter] : model.parameters()) {
      const at::Tensor& gradient = parameter.grad();
      if (gradient.defined() && gradient.layout() == c10::kStrided) {
        window.gradients.emplace_back(name_in(model, name), gradient);
      } else if (gradient.defined()) {
        base::fail(ErrorKind::usage, shared.place, "save_state",
                   "the accumulation window is open and the gradient of {} is sparse, which is not saved; save where "
                   "sync_gradients() is true",
                   name);
      }
    }
  }
  return window;
}

template <typename Core>
int64_t count(Shared& shared) {
  return static_cast<int64_t>(shared.registry.list<Core>().size());
}

void check_counts(Shared& shared, const std::vector<CustomObject>& customs, const checkpoint::Read& read) {
  const auto check = [&](std::string_view what, size_t saved, int64_t here) {
    if (static_cast<int64_t>(saved) == here) return;
    base::fail(ErrorKind::usage, shared.place, "load_state",
               "the checkpoint has {} {}, {} {} here; prepare what was prepared when it was saved, in that order",
               saved, what, here, what == "registered objects" ? "are registered" : "are prepared");
  };
  const Content& content = read.content;
  check("models", content.models.size(), count<ModelCore>(shared));
  check("optimizers", content.optimizers.size(), count<OptimizerCore>(shared));
  check("registered objects", content.customs.size(), static_cast<int64_t>(customs.size()));
  const auto at_most = [&](std::string_view what, size_t saved, int64_t here) {
    if (static_cast<int64_t>(saved) > here) check(what, saved, here);
  };
  at_most("schedulers", content.schedulers.size(), count<SchedulerCore>(shared));
  at_most("loaders", content.loaders.size(), count<LoaderCore>(shared));
  if (content.scaler && !shared.scaling) {
    base::log_once(base::LogLevel::warning, shared.place,
                   "load_state: the checkpoint has a loss scale, and this job computes without one");
  }
}

void check_window(const Shared& shared, const checkpoint::Read& read) {
  if (!read.content.window) return;
  const int64_t saved_by = read.manifest ? read.manifest->world_size : 0;
  if (saved_by == shared.group.size()) return;
  base::fail(ErrorKind::usage, shared.place, "load_state",
             "the checkpoint was saved by {} ranks within an accumulation window, whose gradients are each rank's own; "
             "go on with {} ranks instead of {}, or load one that was saved where sync_gradients() is true",
             saved_by, saved_by, shared.group.size());
}

void resume_window(Shared& shared, const Content& content) {
  const checkpoint::OpenWindow none;
  const auto& window = content.window ? *content.window : none;
  shared.window.resume({.step = content.accumulated, .window = window.micro_batches},
                       WindowCount(static_cast<LossUnit>(window.loss_unit), window.count, window.undivided));
  for (OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) optimizer.drop_gradients();
  std::unordered_map<std::string_view, const at::Tensor*> gradients;
  for (const auto& [name, tensor] : window.gradients) gradients.emplace(name, &tensor);
  for (ModelCore& model : shared.registry.of<ModelCore>()) {
    if (model.engine() != nullptr) model.engine()->zero_all();
    for (const auto& [name, parameter] : model.parameters()) {
      const auto found = gradients.find(name_in(model, name));
      if (found == gradients.end() || found->second->sizes() != parameter.sizes()) continue;
      at::Tensor gradient = at::empty_like(parameter.detach());
      gradient.copy_(*found->second);
      parameter.mutable_grad() = std::move(gradient);
    }
  }
  if (shared.scaling && !gradients.empty()) shared.scaling->backward_done();
}

void load_schedulers(Shared& shared, const Content& content) {
  for (SchedulerCore& scheduler : shared.registry.of<SchedulerCore>()) {
    const auto index = static_cast<size_t>(scheduler.index());
    if (index >= content.schedulers.size() || !content.schedulers[index]) continue;
    auto saved = *content.schedulers[index];
    if (const auto now = scheduler.access.get()) {  // PyTorch's files lack some of it
      if (saved.name.empty()) saved.name = now->name;
      if (saved.base_lrs.empty()) saved.base_lrs = now->base_lrs;
      if (saved.momenta.empty()) saved.momenta = now->momenta;
    }
    scheduler.access.set(saved);
  }
}

}  // namespace

NamedTensors weights_of(const ModelCore& model) {
  NamedTensors weights;
  for (const auto& [name, tensor] : model.parameters()) weights.emplace_back(name, tensor);
  for (const auto& [name, tensor] : model.buffers()) weights.emplace_back(name, tensor);
  return weights;
}

LoadedModel load_weights(const ModelCore& model, const NamedTensors& saved, bool strict, std::string_view operation) {
  const Matched matched = match(model, saved);
  check_match(matched, strict, model.place(), operation, "the model");
  copy(matched);
  return matched.unmet;
}

Content content_of(Shared& shared, const std::vector<CustomObject>& customs) {
  if (shared.scaling) shared.scaling->settle_owed();
  Content content{.step = shared.steps, .accumulated = shared.window.state().step};
  for (const ModelCore& model : shared.registry.of<ModelCore>()) content.models.push_back(weights_of(model));
  content.masters = masters_of(shared);
  for (OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    optimizer.settle();
    content.optimizers.push_back(optim::state_of(optimizer.optimizer(), shared.place));
  }
  for (const SchedulerCore& scheduler : shared.registry.of<SchedulerCore>()) {
    content.schedulers.push_back(scheduler.access.get());
    if (!content.schedulers.back()) {
      base::log_once(base::LogLevel::warning, shared.place,
                     "save_state: {} is a schedule of LibTorch's, which cannot say where it stands: it is not saved; "
                     "take accelerate::optim's of the same name",
                     scheduler.name());
    }
  }
  for (const LoaderCore& loader : shared.registry.of<LoaderCore>()) {
    content.loaders.push_back(loader.access.get());
    if (!content.loaders.back()) {
      base::log_once(base::LogLevel::warning, shared.place,
                     "save_state: {} cannot say where it stands: its place is not saved; see PreparedLoader::state()",
                     loader.name());
    }
  }
  if (!content.loaders.empty() && content.loaders.front()) content.epoch = content.loaders.front()->epoch;
  if (shared.scaling) content.scaler = shared.scaling->scaler().state();
  for (const CustomObject& custom : customs) content.customs.push_back(custom.save());
  content.random = checkpoint::random_states(shared.device.type());
  content.window = open_window(shared);
  return content;
}

void check_content(Shared& shared, const std::vector<CustomObject>& customs, const checkpoint::Read& read,
                   const LoadOptions& options) {
  check_counts(shared, customs, read);
  check_window(shared, read);
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    const auto& saved = read.content.models[static_cast<size_t>(model.index())];
    check_match(match(model, saved), options.strict, shared.place, "load_state", model.name());
  }
  for (const OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    optim::check_state(optimizer.optimizer(), read.content.optimizers[static_cast<size_t>(optimizer.index())],
                       shared.place);
  }
}

void apply_content(Shared& shared, const std::vector<CustomObject>& customs, const checkpoint::Read& read) {
  const Content& content = read.content;
  std::unordered_map<std::string_view, const at::Tensor*> masters;
  for (const auto& [name, master] : content.masters) masters.emplace(name, &master);
  for (const ModelCore& model : shared.registry.of<ModelCore>()) {
    copy(match(model, content.models[static_cast<size_t>(model.index())]));
    for (const auto& [name, parameter] : model.parameters()) {
      const auto found = masters.find(name_in(model, name));
      if (found != masters.end()) shared.masters.set(parameter, *found->second);
    }
  }
  for (const OptimizerCore& optimizer : shared.registry.of<OptimizerCore>()) {
    optim::load_state(optimizer.optimizer(), content.optimizers[static_cast<size_t>(optimizer.index())],
                      state_dtype(shared), shared.place);
  }
  load_schedulers(shared, content);
  for (const LoaderCore& loader : shared.registry.of<LoaderCore>()) {
    const auto index = static_cast<size_t>(loader.index());
    if (index < content.loaders.size() && content.loaders[index]) loader.access.set(*content.loaders[index]);
  }
  if (shared.scaling && content.scaler) shared.scaling->load_state(*content.scaler);
  for (size_t i = 0; i < customs.size(); ++i) customs[i].load(content.customs[i]);
  shared.steps = content.step;
  resume_window(shared, content);
  if (!read.has_random_states) {
    base::log(base::LogLevel::warning, shared.place, "load_state: the checkpoint has no random states");
  } else if (read.has_own_part) {
    checkpoint::set_random_states(content.random, shared.device.type(), shared.place);
  } else {
    checkpoint::branch_off(content.random, shared.group.rank());
  }
}

}  // namespace accelerate::prepared

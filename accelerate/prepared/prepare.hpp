// SPDX-License-Identifier: Apache-2.0
// prepare(): detects the kind of its argument, adds it to the registry and returns its handle.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "accelerate/nn/convert.hpp"
#include "accelerate/prepared/concepts.hpp"
#include "accelerate/prepared/distributed_samplers.hpp"
#include "accelerate/prepared/memory_format.hpp"
#include "accelerate/prepared/module_classes.hpp"
#include "accelerate/prepared/module_tensors.hpp"
#include "accelerate/prepared/pipeline_model.hpp"
#include "accelerate/prepared/prepare_diagnostics.hpp"

namespace accelerate::prepared {

struct PrepareOptions {
  ModelOptions model{};
  LoaderOptions loader{};
  SchedulerOptions scheduler{};
  /// Modules are moved to the device.
  bool device_placement = true;
  /// Memory format of modules.
  env::MemoryFormat memory_format = env::MemoryFormat::contiguous;
};

using SharedPtr = std::shared_ptr<AcceleratorState>;

/// Returns an address that identifies the object behind a handle, or the object itself, among all live objects.
inline const void* identity_of(const torch::nn::Module& module) { return &module; }
inline const void* identity_of(const torch::jit::Module& module) { return module._ivalue().get(); }
inline const void* identity_of(const data::LoaderBase& loader) { return &loader.options(); }  // shared by all copies
template <typename Object>
const void* identity_of(const Object& object) requires(!AnyModule<Object> &&
                                                       !std::derived_from<Object, data::LoaderBase>) {
  return &object;
}

// Return the registry entry of the object, or add a new one.
std::shared_ptr<ModelCore> register_model(AcceleratorState& shared, const ModelOptions& options, const void* identity,
                                          std::vector<gradient::NamedTensor> parameters,
                                          std::vector<gradient::NamedTensor> buffers);
std::shared_ptr<OptimizerCore> register_optimizer(AcceleratorState& shared, torch::optim::Optimizer& optimizer);
std::shared_ptr<SchedulerCore> register_scheduler(AcceleratorState& shared, const SchedulerOptions& options,
                                                  const void* identity);
std::shared_ptr<LoaderCore> register_loader(AcceleratorState& shared, const void* identity);

/// Casts floating-point tensors in place. Unlike to() of a module, it does not change integer, boolean and complex
/// tensors.
void cast_floating(const std::vector<gradient::NamedTensor>& tensors, c10::ScalarType dtype);

/// \throws Error (usage) if a holder or pointer is empty, that is if `there` is false.
void check_device_exists(const AcceleratorState& shared, bool there);

/// Returns the pointer that a handle keeps. It keeps the object alive, which for a copy of a loader is a separate one,
/// and the object of the first handle of the entry, with which the registry counts all handles as one.
template <typename Object>
std::shared_ptr<Object> keep(Entry& entry, const std::shared_ptr<Object>& held, bool owned) {
  auto both =
      std::make_shared<std::pair<std::shared_ptr<void>, std::shared_ptr<Object>>>(entry.add_handle(held, owned), held);
  return {std::move(both), held.get()};
}

template <AnyModule Model>
auto prepare_model(const SharedPtr& shared, const PrepareOptions& options, Model&& model) {
  auto held = hold(std::forward<Model>(model));
  using Module = typename decltype(held)::element_type;
  check_device_exists(*shared, held != nullptr);
  ModelOptions model_options = options.model;
  if constexpr (std::derived_from<Module, torch::nn::Module>) {
    const bool has_hook = model_options.gradient_reducer.hook != gradient::CommHook{};
    model_options.pipeline = layout_of_pipeline(*shared, *held, has_hook);
  }
  const bool is_placed = options.device_placement && !places_own_layers(model_options.pipeline.get());
  if (is_placed) held->to(shared->device);
  if (options.memory_format != env::MemoryFormat::contiguous) {
    set_memory_format(named_parameters(*held), options.memory_format);
    set_memory_format(named_buffers(*held), options.memory_format);
  }
  if (const auto dtype = shared->policy.parameter) {
    if (!options.model.evaluation_mode && *dtype != c10::ScalarType::Float) {
      shared->masters.keep(named_parameters(*held));
    }
    cast_floating(named_parameters(*held), *dtype);
    cast_floating(named_buffers(*held), *dtype);
    if (is_placed) held->to(shared->device);  // recurrent layers flatten their weights again
  }
  if constexpr (std::derived_from<Module, torch::nn::Module>) nn::connect_sync_batchnorm(*held, shared->group);
  model_options.shard_units = modules_of_classes(*held, shared->full_shard.units.classes, shared->place);
  auto core = register_model(*shared, model_options, identity_of(*held), named_parameters(*held), named_buffers(*held));
  if constexpr (std::same_as<Module, torch::jit::Module>) {
    core->exchanges_buffers([module = *held] { return named_buffers(module); });
  }
  if constexpr (std::derived_from<Module, torch::nn::Module>) wrap_train_step(shared, core, *held);
  return PreparedModel<Module>(std::move(held), share_with_state(shared, std::move(core)));
}

/// Shared path for optimizers, schedulers and loaders.
/// \param enter  Returns the registry entry of the object.
/// \param wrap  Returns the handle for the kept object and its entry.
template <typename Object, typename Enter, typename Wrap>
auto prepare_held(const SharedPtr& shared, Object&& object, bool owned, Enter&& enter, Wrap&& wrap) {
  const auto held = hold(std::forward<Object>(object));
  check_device_exists(*shared, held != nullptr);
  auto entry = enter(*held);
  auto kept = keep(*entry, held, owned);
  return wrap(std::move(kept), std::move(entry));
}

template <AnyOptimizer Optimizer>
auto prepare_optimizer(const SharedPtr& shared, Optimizer&& optimizer) {
  return prepare_held(
      shared, std::forward<Optimizer>(optimizer), !is_referenced<Optimizer>,
      [&](auto& object) { return register_optimizer(*shared, object); },
      [&]<typename Object>(std::shared_ptr<Object> kept, std::shared_ptr<OptimizerCore> core) {
        return PreparedOptimizer<Object>(std::move(kept), share_with_state(shared, std::move(core)));
      });
}

template <AnyScheduler Scheduler>
auto prepare_scheduler(const SharedPtr& shared, const PrepareOptions& options, Scheduler&& scheduler) {
  return prepare_held(
      shared, std::forward<Scheduler>(scheduler), !is_referenced<Scheduler>,
      [&](auto& object) { return register_scheduler(*shared, options.scheduler, identity_of(object)); },
      [&]<typename Object>(std::shared_ptr<Object> kept, std::shared_ptr<SchedulerCore> core) {
        if constexpr (OurScheduler<Object>) {
          core->of = &kept->optimizer();
          core->access.add(
              std::shared_ptr<void>(kept), [object = kept.get()] { return object->state(); },
              [object = kept.get()](const state::SchedulerState& state) { object->load_state(state); });
        } else if constexpr (LibTorchScheduler<Object>) {
          core->access.add(
              std::shared_ptr<void>(kept), [object = kept.get()] { return scheduler_state(*object); },
              [object = kept.get()](const state::SchedulerState& state) { prepared::load_state(*object, state); });
        }
        return PreparedScheduler<Object>(std::move(kept), share_with_state(shared, std::move(core)));
      });
}

template <AnyLoader Loader>
auto prepare_data_loader(const SharedPtr& shared, const PrepareOptions& options, Loader&& loader) {
  return prepare_held(
      shared, std::forward<Loader>(loader), /*owned=*/false,
      [&](auto& object) { return register_loader(*shared, identity_of(object)); },
      [&]<typename Object>(std::shared_ptr<Object> kept, const std::shared_ptr<LoaderCore>& core) {
        PreparedLoader<Object> handle(std::move(kept), shared, options.loader);
        handle.enter(*core);
        return handle;
      });
}

/// Several objects of one kind, prepared one after another: std::vector<Net> becomes std::vector<PreparedModel<...>>.
template <typename T>
inline constexpr bool is_list_of_objects = false;
template <typename T, typename Allocator>
inline constexpr bool is_list_of_objects<std::vector<T, Allocator>> =
    AnyModule<T&> || AnyOptimizer<T&> || AnyScheduler<T&>;

/// \returns The handle. A prepared object is returned as it is.
/// \throws Error (usage) if a handle is empty.
template <typename Object>
auto prepare(const SharedPtr& shared, const PrepareOptions& options, Object&& object) {
  if constexpr (AlreadyPrepared<Object>) {
    object.require_assigned();
    return std::remove_cvref_t<Object>(object);
  } else if constexpr (AnyModule<Object>) {
    return prepare_model(shared, options, std::forward<Object>(object));
  } else if constexpr (AnyOptimizer<Object>) {
    return prepare_optimizer(shared, std::forward<Object>(object));
  } else if constexpr (AnyScheduler<Object>) {
    return prepare_scheduler(shared, options, std::forward<Object>(object));
  } else if constexpr (is_list_of_objects<std::remove_cvref_t<Object>>) {
    using Element = typename std::remove_cvref_t<Object>::value_type;
    std::vector<decltype(prepare(shared, options, std::declval<Element&>()))> prepared_objects;
    for (auto& element : object) {
      if constexpr (std::is_lvalue_reference_v<Object>) {
        prepared_objects.push_back(prepare(shared, options, element));
      } else {
        prepared_objects.push_back(prepare(shared, options, std::move(element)));
      }
    }
    return prepared_objects;
  } else if constexpr (AnyLoader<Object> && SharedBySampler<pointee_t<Object>>) {
    refuse_distributed_sampler<Object>();
    return refused<PreparedLoader<pointee_t<Object>>>();
  } else if constexpr (AnyLoader<Object> && YieldsTensors<Object>) {
    return prepare_data_loader(shared, options, std::forward<Object>(object));
  } else {
    static_assert_preparable<Object>();
    return refused<std::remove_cvref_t<Object>>();
  }
}

}  // namespace accelerate::prepared

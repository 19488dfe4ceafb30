// SPDX-License-Identifier: Apache-2.0
// Classifies the arguments of prepare() at compile time.
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include <concepts>
#include <iterator>
#include <memory>
#include <type_traits>
#include <utility>

#include "accelerate/prepared/erased_loader.hpp"
#include "accelerate/prepared/loader.hpp"
#include "accelerate/prepared/model.hpp"
#include "accelerate/prepared/optimizer.hpp"
#include "accelerate/prepared/scheduler.hpp"

namespace accelerate::prepared {

template <typename T>
inline constexpr bool is_pointer_to_object = false;
template <typename T>
inline constexpr bool is_pointer_to_object<std::shared_ptr<T>> = true;
template <typename T>
inline constexpr bool is_pointer_to_object<std::unique_ptr<T>> = true;

template <typename T>
concept SmartPointer = is_pointer_to_object<std::remove_cvref_t<T>>;

template <typename T>
// the base class is private
concept ModuleHolder = std::is_base_of_v<torch::detail::ModuleHolderIndicator, std::remove_cvref_t<T>>;

/// The object behind a smart pointer or a module holder, otherwise the object itself.
template <typename T>
struct Pointee {
  using type = std::remove_cvref_t<T>;
};
template <SmartPointer T>
struct Pointee<T> {
  using type = typename std::remove_cvref_t<T>::element_type;
};
template <ModuleHolder T>
struct Pointee<T> {
  using type = typename std::remove_cvref_t<T>::ContainedType;
};
template <typename T>
using pointee_t = typename Pointee<T>::type;

/// Types with handle semantics: copies refer to the same object. prepare() keeps a copy instead of a reference.
template <typename T>
inline constexpr bool copies_are_handles =
    std::same_as<T, torch::jit::Module> || std::derived_from<T, data::LoaderBase>;

/// Training changes prepared objects, so only a handle may be const.
template <typename T>
concept Changeable = !std::is_const_v<std::remove_reference_t<T>> || SmartPointer<T> || ModuleHolder<T> ||
                     copies_are_handles<std::remove_cvref_t<T>>;

template <typename T>
concept AnyModule = Changeable<T> &&
    (std::derived_from<pointee_t<T>, torch::nn::Module> || std::same_as<pointee_t<T>, torch::jit::Module>);

template <typename T>
concept AnyOptimizer = Changeable<T> && std::derived_from<pointee_t<T>, torch::optim::Optimizer>;

template <typename T>
concept AnyScheduler = Changeable<T> &&(FollowsSteps<pointee_t<T>> || FollowsMetric<pointee_t<T>> ||
                                        std::derived_from<pointee_t<T>, torch::optim::LRScheduler>);

template <typename T>
inline constexpr bool is_prepared = false;
template <typename T>
inline constexpr bool is_prepared<PreparedModel<T>> = true;
template <typename T>
inline constexpr bool is_prepared<PreparedOptimizer<T>> = true;
template <typename T>
inline constexpr bool is_prepared<PreparedScheduler<T>> = true;
template <typename T>
inline constexpr bool is_prepared<PreparedLoader<T>> = true;
template <typename Batch>
inline constexpr bool is_prepared<ErasedLoader<Batch>> = true;

template <typename T>
concept AlreadyPrepared = is_prepared<std::remove_cvref_t<T>>;

template <typename T>
inline constexpr bool is_prepared_model = false;
template <typename T>
inline constexpr bool is_prepared_model<PreparedModel<T>> = true;

template <typename T>
concept AnyLoader = !AlreadyPrepared<T> && !AnyModule<T> && !std::same_as<pointee_t<T>, at::Tensor> && Changeable<T> &&
                    requires(pointee_t<T> & loader) {
  loader.begin();
  loader.end();
  *loader.begin();
};

template <typename T>
concept YieldsTensors = tree::holds_tensors<decltype(*std::declval<pointee_t<T>&>().begin())>;

/// Whether prepare() keeps only a reference, so that the caller must keep the object alive. This applies to lvalues
/// that are not copyable handles.
template <typename T>
inline constexpr bool is_referenced =
    std::is_lvalue_reference_v<T> && !ModuleHolder<T> && !copies_are_handles<std::remove_cvref_t<T>> &&
    !(SmartPointer<T> && std::is_copy_constructible_v<std::remove_cvref_t<T>>);

/// References lvalues, owns rvalues, and shares smart pointers, module holders and other handles.
/// \returns a pointer, null for an empty holder or smart pointer. For a referenced object it does not own the object,
/// but counts the handles.
template <typename T>
std::shared_ptr<pointee_t<T>> hold(T&& object) {
  using Object = pointee_t<T>;
  const auto referred = [](Object* there) { return std::shared_ptr<Object>(there, [](Object*) {}); };
  if constexpr (ModuleHolder<T>) {
    return object.is_empty() ? nullptr : object.ptr();
  } else if constexpr (SmartPointer<T> && is_referenced<T>) {
    return object ? referred(object.get()) : nullptr;
  } else if constexpr (SmartPointer<T>) {
    return std::forward<T>(object);
  } else if constexpr (is_referenced<T>) {
    return referred(&object);
  } else {
    return std::make_shared<Object>(std::forward<T>(object));
  }
}

}  // namespace accelerate::prepared

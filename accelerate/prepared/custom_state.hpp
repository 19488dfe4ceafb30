// SPDX-License-Identifier: Apache-2.0
// User objects that are saved and loaded with the prepared objects.
#pragma once

#include <torch/ordered_dict.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/checkpoint/checkpoint_content.hpp"
#include "accelerate/precision/scaler_state.hpp"
#include "accelerate/state/loader_state.hpp"
#include "accelerate/state/parameter_shard.hpp"
#include "accelerate/state/scheduler_state.hpp"

namespace accelerate::prepared {

struct CustomObject {
  std::function<checkpoint::CustomState()> save;
  /// \throws Error (data) if the saved state does not match the object: bytes instead of tensors, for example.
  std::function<void(const checkpoint::CustomState&)> check;
  /// The state must have passed check().
  std::function<void(const checkpoint::CustomState&)> load;
  /// Returns a parameter of the same shape for each saved tensor that has one, by name. Empty if the object does
  /// not name them.
  std::function<checkpoint::NamedTensors()> parameters{};
  /// Returns the tensors of save() with their ranges, of which this rank may have only its elements. Empty if the
  /// tensors of the object are always whole.
  std::function<std::vector<state::ParameterShard>()> shards{};
};

using TensorDict = torch::OrderedDict<std::string, at::Tensor>;

/// \throws Error (usage) with the name of a tensor of a registered object that cannot be saved.
void check_can_be_saved(const std::vector<checkpoint::CustomState>& customs);

/// State as tensors by name, as of modules and ExponentialMovingAverage.
template <typename Object>
concept HasTensorState = requires(Object& object, const TensorDict& saved) {
  { object.state_dict() } -> std::convertible_to<TensorDict>;
  object.load_state_dict(saved);
};
/// A parameter of the same shape for each tensor of state_dict() that has one, by name. Parts of tensor parallel layers
/// are recognised by them.
template <typename Object>
concept HasStateParameters = requires(Object& object) {
  { object.state_parameters() } -> std::convertible_to<TensorDict>;
};
/// State that may be divided over the ranks, as of averages of sharded weights. Ranges and keys of the shards are those
/// of the model's parameter_shards(). If the parameter of a key is sharded, `value` has this rank's elements;
/// otherwise, and if the key is null, it is whole.
template <typename Object>
concept HasStateShards = HasTensorState<Object> && requires(Object& object, const TensorDict& saved) {
  { object.state_shards() } -> std::convertible_to<std::vector<state::ParameterShard>>;
  object.load_state_shards(saved);
};
/// State as opaque bytes.
template <typename Object>
concept HasByteState = requires(Object& object, const std::string& saved) {
  { object.state() } -> std::convertible_to<std::string>;
  object.load_state(saved);
};
/// States of this library's own schedulers, loaders and loss scalers. Files contain them as JSON.
template <typename State>
concept OwnState = std::same_as<State, state::SchedulerState> || std::same_as<State, state::LoaderState> ||
    std::same_as<State, precision::ScalerState>;
template <typename Object>
concept HasOwnState = requires(Object& object) {
  requires OwnState<std::remove_cvref_t<decltype(object.state())>>;
  object.load_state(object.state());
};
template <typename Object>
concept Checkpointable = HasTensorState<Object> || HasByteState<Object> || HasOwnState<Object>;

[[nodiscard]] std::string json_of(const state::SchedulerState& state);
[[nodiscard]] std::string json_of(const state::LoaderState& state);
[[nodiscard]] std::string json_of(const precision::ScalerState& state);
/// \throws Error (data) if the text is not from json_of() of the same type.
void read_json(const std::string& text, state::SchedulerState& state);
void read_json(const std::string& text, state::LoaderState& state);
void read_json(const std::string& text, precision::ScalerState& state);

inline checkpoint::NamedTensors named(const TensorDict& dict) {
  checkpoint::NamedTensors tensors;
  for (const auto& item : dict) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

/// \param object  Shared with the caller, or kept alive by the caller.
/// \note Returns an empty CustomObject for a type that is not Checkpointable: check_checkpointable() already reports
/// it, and its message shall be the only one.
template <typename Object>
CustomObject custom_object(std::shared_ptr<Object> object) {
  [[maybe_unused]] const auto wrong = [](std::string_view has) {
    base::fail(ErrorKind::data, {}, "load_state",
               "the saved state of a registered object is {}; were the objects "
               "registered in another order?",
               has);
  };
  if constexpr (HasTensorState<Object>) {
    std::function<checkpoint::NamedTensors()> parameters;
    if constexpr (HasStateParameters<Object>) parameters = [object] { return named(object->state_parameters()); };
    std::function<std::vector<state::ParameterShard>()> shards;
    if constexpr (HasStateShards<Object>) shards = [object] { return object->state_shards(); };
    return {[object] { return checkpoint::CustomState(named(object->state_dict())); },
            [wrong](const checkpoint::CustomState& state) {
              if (!std::holds_alternative<checkpoint::NamedTensors>(state)) wrong("bytes, expected tensors");
            },
            [object](const checkpoint::CustomState& state) {
              TensorDict dict;
              for (const auto& [name, tensor] : std::get<checkpoint::NamedTensors>(state)) {
                dict.insert(name, tensor.clone());
              }
              if constexpr (HasStateShards<Object>) {
                object->load_state_shards(dict);
              } else {
                object->load_state_dict(dict);
              }
            },
            std::move(parameters), std::move(shards)};
  } else if constexpr (HasByteState<Object>) {
    return {[object] { return checkpoint::CustomState(std::string(object->state())); },
            [wrong](const checkpoint::CustomState& state) {
              if (!std::holds_alternative<std::string>(state)) wrong("tensors, expected bytes");
            },
            [object](const checkpoint::CustomState& state) { object->load_state(std::get<std::string>(state)); }};
  } else if constexpr (HasOwnState<Object>) {
    using State = std::remove_cvref_t<decltype(object->state())>;
    return {[object] { return checkpoint::CustomState(json_of(object->state())); },
            [wrong](const checkpoint::CustomState& state) {
              const auto* text = std::get_if<std::string>(&state);
              if (text == nullptr) wrong("tensors, expected bytes");
              State saved;
              read_json(*text, saved);
            },
            [object](const checkpoint::CustomState& state) {
              State saved;
              read_json(std::get<std::string>(state), saved);
              object->load_state(saved);
            }};
  } else {
    return {};
  }
}

template <typename Object>
struct OfPointer {
  using type = Object;
};
template <typename Object>
struct OfPointer<std::shared_ptr<Object>> {
  using type = Object;
};

template <typename Object>
inline constexpr bool is_shared_pointer =
    std::same_as<std::remove_cvref_t<Object>, std::shared_ptr<typename OfPointer<std::remove_cvref_t<Object>>::type>>;
/// The type of the saved object. It is const if the caller's object is; an rvalue is stored as non-const.
template <typename Object>
using RegisteredObject =
    std::conditional_t<is_shared_pointer<Object>, typename OfPointer<std::remove_cvref_t<Object>>::type,
                       std::conditional_t<std::is_lvalue_reference_v<Object>, std::remove_reference_t<Object>,
                                          std::remove_cvref_t<Object>>>;

/// \returns a copy of a shared pointer, an owning pointer to an rvalue, or a non-owning pointer to an lvalue.
/// \throws Error (usage) for a null shared pointer.
template <typename Object>
auto custom_pointer(Object&& object) {
  using Kept = std::remove_cvref_t<Object>;
  if constexpr (is_shared_pointer<Object>) {
    if (!object)
      base::fail(ErrorKind::usage, {}, "register_for_checkpointing",
                 "a shared pointer points to no object; make the object first");
    return Kept(object);
  } else if constexpr (std::is_lvalue_reference_v<Object>) {
    return std::shared_ptr<std::remove_reference_t<Object>>(std::shared_ptr<void>(), &object);
  } else {
    return std::make_shared<Kept>(std::forward<Object>(object));
  }
}

/// \tparam position  Argument index in register_for_checkpointing(), from 0, for the compiler's message.
template <std::size_t position, typename Object>
constexpr void check_checkpointable() {
  static_assert(Checkpointable<RegisteredObject<Object>>,
                "register_for_checkpointing() takes objects that have state() and load_state() of a std::string, "
                "state_dict() and load_state_dict() of a torch::OrderedDict<std::string, at::Tensor>, and this "
                "library's schedules, loaders and loss scales, none of them const; the number in "
                "check_checkpointable<number, type> is the index of the object that is none of these");
}
template <typename... Objects>
constexpr void check_all_checkpointable() {
  []<std::size_t... position>(std::index_sequence<position...>) { (check_checkpointable<position, Objects>(), ...); }
  (std::index_sequence_for<Objects...>());
}

}  // namespace accelerate::prepared

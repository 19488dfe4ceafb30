// SPDX-License-Identifier: Apache-2.0
// state::LoaderState as JSON, for files; there when the program has nlohmann's library:
//
//   nlohmann::json saved = loader.state();
//   loader.load_state(accelerate::data::loader_state_from_json(saved));
#pragma once

#if __has_include(<nlohmann/json.hpp>)

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "accelerate/base/error.hpp"
#include "accelerate/state/loader_state.hpp"

namespace accelerate::state {

inline constexpr int64_t kLoaderStateVersion = 1;

/// Found by nlohmann::json.
inline void to_json(nlohmann::json& json, const LoaderState& state) {
  json = {{"version", kLoaderStateVersion},
          {"epoch", state.epoch},
          {"consumed", state.consumed},
          {"origin", state.origin},
          {"samples", state.samples},
          {"seed", nullptr},
          {"world_size", state.world_size},
          {"batch_size", state.batch_size},
          {"split_batches", state.split_batches},
          {"even_batches", state.even_batches},
          {"drop_last", state.drop_last}};
  if (state.seed) json["seed"] = *state.seed;
}

}  // namespace accelerate::state

namespace accelerate::data {
namespace detail {

template <typename Value>
Value member(const nlohmann::json& json, const char* key, bool right_type, const char* type) {
  if (!json.contains(key)) {
    base::fail(ErrorKind::data, {}, "load_state", "the saved state has no \"{}\"; it was not written by this library",
               key);
  }
  if (!right_type) {
    base::fail(ErrorKind::data, {}, "load_state", "\"{}\" of the saved state is {}, must be {}", key,
               json[key].dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), type);
  }
  return json[key].template get<Value>();
}

inline int64_t integer(const nlohmann::json& json, const char* key) {
  constexpr auto most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const bool is_integer = json.contains(key) && json[key].is_number_integer() &&
                          !(json[key].is_number_unsigned() && json[key].template get<uint64_t>() > most);
  return member<int64_t>(json, key, is_integer, "an integer of 64 bits");
}

inline bool boolean(const nlohmann::json& json, const char* key) {
  return member<bool>(json, key, json.contains(key) && json[key].is_boolean(), "true or false");
}

}  // namespace detail

/// Throws Error (data) for JSON that is no saved state, or one of a later version.
inline state::LoaderState loader_state_from_json(const nlohmann::json& json) {
  if (!json.is_object()) {
    base::fail(ErrorKind::data, {}, "load_state", "the saved state is {}, must be a JSON object", json.type_name());
  }
  const int64_t version = detail::integer(json, "version");
  if (version != state::kLoaderStateVersion) {
    base::fail(ErrorKind::data, {}, "load_state", "the saved state has version {}, this library reads {}", version,
               state::kLoaderStateVersion);
  }
  state::LoaderState state{.epoch = detail::integer(json, "epoch"),
                           .consumed = detail::integer(json, "consumed"),
                           .origin = detail::integer(json, "origin"),
                           .samples = detail::integer(json, "samples"),
                           .world_size = detail::integer(json, "world_size"),
                           .batch_size = detail::integer(json, "batch_size"),
                           .split_batches = detail::boolean(json, "split_batches"),
                           .even_batches = detail::boolean(json, "even_batches"),
                           .drop_last = detail::boolean(json, "drop_last")};
  if (json.contains("seed") && !json["seed"].is_null()) {
    state.seed = detail::member<uint64_t>(json, "seed", json["seed"].is_number_unsigned(), "an unsigned integer");
  }
  return state;
}

}  // namespace accelerate::data

#endif  // nlohmann/json.hpp

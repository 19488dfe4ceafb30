// SPDX-License-Identifier: Apache-2.0
// Converts state::LoaderState to and from JSON. Available if the program has nlohmann's library.
//
//   nlohmann::json saved = loader.state();
//   loader.load_state(accelerate::data::loader_state_from_json(saved));
#pragma once

#if __has_include(<nlohmann/json.hpp>)

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "accelerate/state/json_member.hpp"
#include "accelerate/state/loader_state.hpp"

namespace accelerate::state {

/// Version 2 contains the kind of order.
inline constexpr int64_t kLoaderStateVersion = 2;

/// Customization point of nlohmann::json.
inline void to_json(nlohmann::json& json, const LoaderState& state) {
  json = {{"version", kLoaderStateVersion},
          {"epoch", state.epoch},
          {"consumed", state.consumed},
          {"origin", state.origin},
          {"samples", state.samples},
          {"order", state.order},
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

/// \throws Error (data) for JSON that is not a saved state, or one of a later version.
inline state::LoaderState loader_state_from_json(const nlohmann::json& json) {
  using state::boolean, state::integer;
  const bool is_first = json.is_object() && json.contains("version") && json["version"] == 1;
  if (!is_first) state::check_version(json, state::kLoaderStateVersion);
  state::LoaderState loader{.epoch = integer(json, "epoch"),
                            .consumed = integer(json, "consumed"),
                            .origin = integer(json, "origin"),
                            .samples = integer(json, "samples"),
                            .order = is_first ? std::string() : state::text(json, "order"),
                            .world_size = integer(json, "world_size"),
                            .batch_size = integer(json, "batch_size"),
                            .split_batches = boolean(json, "split_batches"),
                            .even_batches = boolean(json, "even_batches"),
                            .drop_last = boolean(json, "drop_last")};
  if (json.contains("seed") && !json["seed"].is_null()) {
    loader.seed = state::member<uint64_t>(json, "seed", json["seed"].is_number_unsigned(), "an unsigned integer");
  }
  return loader;
}

}  // namespace accelerate::data

#endif  // nlohmann/json.hpp

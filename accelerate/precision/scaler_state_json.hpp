// SPDX-License-Identifier: Apache-2.0
// Converts ScalerState to and from JSON with the names of torch.amp.GradScaler.state_dict(). Available if the program
// has nlohmann's library.
//
//   nlohmann::json saved = accelerator.scaler_state();
//   accelerator.load_scaler_state(accelerate::precision::scaler_state_from_json(saved));
#pragma once

#if __has_include(<nlohmann/json.hpp>)

#include <nlohmann/json.hpp>
#include <type_traits>

#include "accelerate/base/error.hpp"
#include "accelerate/precision/scaler_state.hpp"

namespace accelerate::precision {

/// Customization point of nlohmann::json.
inline void to_json(nlohmann::json& json, const ScalerState& state) {
  json = {{"scale", state.scale},
          {"growth_factor", state.growth_factor},
          {"backoff_factor", state.backoff_factor},
          {"growth_interval", state.growth_interval},
          {"_growth_tracker", state.growth_tracker}};
}

namespace detail {

template <typename Value>
Value scaler_member(const nlohmann::json& json, const char* key) {
  constexpr bool whole = std::is_integral_v<Value>;
  if (!json.contains(key)) {
    base::fail(ErrorKind::data, {}, "load_state", "the saved loss scale has no \"{}\"; is it another file's?", key);
  }
  if (whole ? !json[key].is_number_integer() : !json[key].is_number()) {
    base::fail(ErrorKind::data, {}, "load_state", "\"{}\" of the saved loss scale is {}, must be {}", key,
               json[key].dump(), whole ? "an integer" : "a number");
  }
  return json[key].template get<Value>();
}

}  // namespace detail

/// \throws Error (data) for invalid JSON, with the member; the values are validated when they are loaded.
inline ScalerState scaler_state_from_json(const nlohmann::json& json) {
  if (!json.is_object()) {
    base::fail(ErrorKind::data, {}, "load_state", "the saved loss scale is {}, must be a JSON object",
               json.type_name());
  }
  return {.scale = detail::scaler_member<double>(json, "scale"),
          .growth_factor = detail::scaler_member<double>(json, "growth_factor"),
          .backoff_factor = detail::scaler_member<double>(json, "backoff_factor"),
          .growth_interval = detail::scaler_member<int64_t>(json, "growth_interval"),
          .growth_tracker = detail::scaler_member<int64_t>(json, "_growth_tracker")};
}

}  // namespace accelerate::precision

#endif  // nlohmann/json.hpp

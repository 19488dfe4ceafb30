// SPDX-License-Identifier: Apache-2.0
// Converts state::SchedulerState to and from JSON. Available if the program has nlohmann's library.
//
//   nlohmann::json saved = scheduler.state();
//   scheduler.load_state(accelerate::optim::scheduler_state_from_json(saved));
#pragma once

#if __has_include(<nlohmann/json.hpp>)

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <vector>

#include "accelerate/state/json_member.hpp"
#include "accelerate/state/scheduler_state.hpp"

namespace accelerate::state {

inline constexpr int64_t kSchedulerStateVersion = 1;

namespace detail {

/// Writes infinity and NaN as strings, because JSON does not have them.
inline nlohmann::json number_to_json(double number) {
  if (std::isfinite(number)) return number;
  return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
}

inline double number_from_json(const nlohmann::json& json, const char* key) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (json == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (json == "inf" || json == "-inf") return json == "inf" ? infinity : -infinity;
  if (!json.is_number()) {
    base::fail(ErrorKind::data, {}, "load_state", "\"{}\" of the saved state holds {}, must be numbers", key,
               shown(json));
  }
  return json.get<double>();
}

inline nlohmann::json numbers_to_json(const std::vector<double>& numbers) {
  auto list = nlohmann::json::array();
  for (const double number : numbers) list.push_back(number_to_json(number));
  return list;
}

inline std::vector<double> numbers_from_json(const nlohmann::json& json, const char* key) {
  std::vector<double> numbers;
  for (const auto& number : member<nlohmann::json>(json, key, json.contains(key) && json[key].is_array(), "a list")) {
    numbers.push_back(number_from_json(number, key));
  }
  return numbers;
}

}  // namespace detail

/// Customization point of nlohmann::json.
inline void to_json(nlohmann::json& json, const SchedulerState& state) {
  json = {{"version", kSchedulerStateVersion},
          {"name", state.name},
          {"steps", state.steps},
          {"base_lrs", detail::numbers_to_json(state.base_lrs)},
          {"last_lrs", detail::numbers_to_json(state.last_lrs)}};
  if (!state.momenta.empty()) json["momenta"] = detail::numbers_to_json(state.momenta);
  if (!state.plateau) return;
  json["plateau"] = {{"best", detail::number_to_json(state.plateau->best)},
                     {"num_bad", state.plateau->num_bad},
                     {"cooldown", state.plateau->cooldown}};
}

}  // namespace accelerate::state

namespace accelerate::optim {

/// \throws Error (data) if the JSON is not a saved state of a schedule, or is from a later version.
inline state::SchedulerState scheduler_state_from_json(const nlohmann::json& json) {
  using state::integer, state::detail::number_from_json, state::detail::numbers_from_json;
  state::check_version(json, state::kSchedulerStateVersion);
  state::SchedulerState scheduler{.name = state::text(json, "name"),
                                  .steps = integer(json, "steps"),
                                  .base_lrs = numbers_from_json(json, "base_lrs"),
                                  .last_lrs = numbers_from_json(json, "last_lrs")};
  if (json.contains("momenta")) scheduler.momenta = numbers_from_json(json, "momenta");
  if (json.contains("plateau")) {
    const auto plateau = state::member<nlohmann::json>(json, "plateau", json["plateau"].is_object(), "an object");
    const auto best = state::member<nlohmann::json>(plateau, "best", true, "a number");
    scheduler.plateau = state::PlateauState{.best = number_from_json(best, "best"),
                                            .num_bad = integer(plateau, "num_bad"),
                                            .cooldown = integer(plateau, "cooldown")};
  }
  return scheduler;
}

}  // namespace accelerate::optim

#endif  // nlohmann/json.hpp

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/custom_state.hpp"

#include <nlohmann/json.hpp>

#include "accelerate/checkpoint/tensors.hpp"
#include "accelerate/data/loader_state.hpp"
#include "accelerate/optim/schedules/scheduler_state.hpp"
#include "accelerate/precision/scaler_state_json.hpp"

namespace accelerate::prepared {
namespace {

nlohmann::json parsed(const std::string& text) {
  auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) {
    base::fail(ErrorKind::data, {}, "load_state",
               "the saved state of a registered object is not JSON, expected that of a schedule, a loader or a loss "
               "scale; were the objects registered in another order?");
  }
  return json;
}

}  // namespace

void check_can_be_saved(const std::vector<checkpoint::CustomState>& customs) {
  for (const auto& custom : customs) {
    const auto* tensors = std::get_if<checkpoint::NamedTensors>(&custom);
    if (tensors == nullptr) continue;
    for (const auto& [name, tensor] : *tensors) checkpoint::check_can_be_written(tensor, name, "save_state");
  }
}

std::string json_of(const state::SchedulerState& state) { return nlohmann::json(state).dump(); }
std::string json_of(const state::LoaderState& state) { return nlohmann::json(state).dump(); }
std::string json_of(const precision::ScalerState& state) { return nlohmann::json(state).dump(); }

void read_json(const std::string& text, state::SchedulerState& state) {
  state = optim::scheduler_state_from_json(parsed(text));
}
void read_json(const std::string& text, state::LoaderState& state) {
  state = data::loader_state_from_json(parsed(text));
}
void read_json(const std::string& text, precision::ScalerState& state) {
  state = precision::scaler_state_from_json(parsed(text));
}

}  // namespace accelerate::prepared

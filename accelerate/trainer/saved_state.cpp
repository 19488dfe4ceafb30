// SPDX-License-Identifier: Apache-2.0
#include "accelerate/trainer/saved_state.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "accelerate/base/error.hpp"

namespace accelerate::trainer {
namespace {

using nlohmann::json;

/// JSON has neither NaN nor infinity, so they are stored as strings.
json number_to_json(double value) { return std::isfinite(value) ? json(value) : json(fmt::format("{}", value)); }
double number_from_json(const json& value) {
  return value.is_string() ? std::stod(value.get<std::string>()) : value.get<double>();
}

void check_step(int64_t saved, int64_t now) {
  if (saved == now || saved == 0 || now == 0) return;
  base::fail(ErrorKind::usage, {}, "resume_from_checkpoint",
             "a step of the checkpoint's training takes {} samples, a step of this one {}: ranks times "
             "per_device_train_batch_size times gradient_accumulation_steps must be the same; or start again from its "
             "weights, with load_checkpoint_in_model()",
             saved, now);
}

}  // namespace

std::string saved(const TrainerState& state, bool stopped) {
  json history = json::array();
  for (const auto& entry : state.log_history) {
    json one = json::object();
    for (const auto& [name, value] : entry) one[name] = number_to_json(value);
    history.push_back(std::move(one));
  }
  json all{{"epoch", state.epoch},
           {"global_step", state.global_step},
           {"total_train_batch_size", state.total_train_batch_size},
           {"stopped", stopped},
           {"best_global_step", state.best_global_step},
           {"best_metric", state.best_metric ? number_to_json(*state.best_metric) : json()},
           {"log_history", std::move(history)}};
  // Names can have bytes that are not UTF-8.
  return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

bool load_trainer_state(TrainerState& state, const std::string& text) {
  try {
    const json all = json::parse(text);
    TrainerState loaded = state;
    loaded.epoch = all.at("epoch");
    loaded.global_step = all.at("global_step");
    loaded.best_global_step = all.at("best_global_step");
    loaded.best_metric.reset();
    if (!all.at("best_metric").is_null()) loaded.best_metric = number_from_json(all.at("best_metric"));
    loaded.log_history.clear();
    for (const auto& one : all.at("log_history")) {
      auto& entry = loaded.log_history.emplace_back();
      for (const auto& [name, value] : one.items()) entry[name] = number_from_json(value);
    }
    const bool stopped = all.value("stopped", false);
    check_step(all.value("total_train_batch_size", int64_t{0}), state.total_train_batch_size);
    state = std::move(loaded);
    return stopped;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    base::fail(ErrorKind::data, {}, "resume_from_checkpoint", "the checkpoint's state is not a Trainer's: {}",
               error.what());
  }
}

}  // namespace accelerate::trainer

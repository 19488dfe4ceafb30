// SPDX-License-Identifier: Apache-2.0
// A checkpoint with parts of every kind, without training.
#pragma once

#include <torch/torch.h>

#include "accelerate/checkpoint/read.hpp"
#include "accelerate/checkpoint/save.hpp"

namespace testing {

inline accelerate::checkpoint::CheckpointContent small_content(double value = 1) {
  using accelerate::checkpoint::NamedTensors;
  accelerate::checkpoint::CheckpointContent content{.step = 7, .epoch = 2, .accumulated = 5};
  const auto shared = torch::full({2, 3}, value);
  content.models.push_back({{"a.weight", shared},
                            {"tied", shared},
                            {"b", torch::arange(5, torch::kDouble).t()},
                            {"half", torch::full({3}, value, torch::kBFloat16)},
                            {"empty", torch::empty({0, 4})},
                            {"count", torch::full({}, 3, torch::kLong)}});
  content.models.push_back({{"w", torch::full({4}, 2 * value)}});
  accelerate::state::OptimizerState optimizer;
  optimizer.groups.push_back({{{"lr", 0.1},
                               {"betas", std::pair(0.9, 0.99)},
                               {"foreach", std::monostate{}},
                               {"amsgrad", true},
                               {"count", int64_t{1} << 40}},
                              {0, 1}});
  optimizer.tensors[1] = {{"step", torch::full({}, 3.0F)}, {"exp_avg", torch::full({2, 3}, value)}};
  content.optimizers.push_back(optimizer);
  content.schedulers.emplace_back(accelerate::state::SchedulerState{
      .name = "OneCycleLR", .steps = 6, .base_lrs = {0.1}, .last_lrs = {0.05}, .momenta = {0.9}});
  content.schedulers.emplace_back(std::nullopt);
  content.schedulers.emplace_back(
      accelerate::state::SchedulerState{.name = "ReduceLROnPlateau",
                                        .steps = 2,
                                        .last_lrs = {0.5},
                                        .plateau = {{.best = 0.25, .num_bad = 1, .cooldown = 0}}});
  content.loaders.emplace_back(std::nullopt);
  content.loaders.emplace_back(accelerate::state::LoaderState{
      .epoch = 2, .consumed = 8, .origin = 4, .samples = 20, .seed = ~uint64_t{0}, .world_size = 2, .batch_size = 4});
  content.scaler = accelerate::precision::ScalerState{.scale = 1024, .growth_tracker = 17};
  content.customs.emplace_back(std::string("bytes \0\xff of its own", 18));
  content.customs.emplace_back(NamedTensors{{"n_averaged", torch::full({}, 3, torch::kLong)}});
  content.masters = {{"model.0/half", torch::full({3}, value)}};
  content.random = accelerate::checkpoint::random_states(torch::kCPU);
  content.window = accelerate::checkpoint::OpenWindow{.micro_batches = 2,
                                                      .of = 4,
                                                      .loss_unit = 3,
                                                      .count = 11,
                                                      .undivided = 2,
                                                      .gradients = {{"model.1/w", torch::ones({4})}}};
  return content;
}

inline void save(const std::filesystem::path& place, const accelerate::checkpoint::CheckpointContent& content,
                 accelerate::checkpoint::SaveOptions options = {}) {
  options.durable = false;
  accelerate::checkpoint::CheckpointWriter saver({});
  saver.save(content, {.place = place, .options = options});
  saver.wait();
}

inline accelerate::checkpoint::CheckpointContent load(const std::filesystem::path& place) {
  return accelerate::checkpoint::read_checkpoint(place, 0, torch::kCPU, "load_state").content;
}

}  // namespace testing

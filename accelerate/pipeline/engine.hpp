// SPDX-License-Identifier: Apache-2.0
// Executes the plan of a step on this process's stages. Private.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/pipeline/pipeline.hpp"
#include "accelerate/pipeline/schedule.hpp"
#include "accelerate/pipeline/stage.hpp"
#include "accelerate/pipeline/transport.hpp"

namespace accelerate::pipeline {

class Engine {
 public:
  struct Setup {
    Schedule schedule = Schedule::gpipe;
    int64_t ranks = 1;
    int64_t stages_per_rank = 1;
    int64_t micro_batches = 1;
    std::optional<int64_t> rank{};  ///< this process's rank; unset if it executes all ranks of the plan
    RankContext place{};
  };

  /// \param stages  This process's stages by their number.
  Engine(Setup setup, std::map<int64_t, Stage> stages, std::unique_ptr<Transport> transport);

  /// \param seed  Returns the initial gradient for the loss of a micro-batch. If empty, it is 1. The returned mean loss
  ///              does not contain it.
  /// \returns the mean loss as float64 on the process of the last stage, elsewhere an undefined tensor.
  at::Tensor train_step(const at::Tensor& input, const at::Tensor& target, const Loss& loss, const LossSeed& seed);
  /// \returns the output on the process of the last stage, elsewhere an undefined tensor.
  at::Tensor forward(const at::Tensor& input);
  /// Replaces the transport between two steps.
  void set_transport(std::unique_ptr<Transport> transport) { transport_ = std::move(transport); }
  /// Called with the number of micro-batches of each step, before the first one.
  void set_step_check(std::function<void(int64_t micro_batches)> check) { step_check_ = std::move(check); }

 private:
  struct Step {
    StepHeader header{};
    std::vector<at::Tensor> inputs{};   ///< micro-batches, for the first stage
    std::vector<at::Tensor> targets{};  ///< micro-batches, for the last stage
    const Loss* loss = nullptr;
    const LossSeed* seed = nullptr;
    at::Tensor mean_loss{};
    std::vector<at::Tensor> outputs{};  ///< of the last stage, in an evaluation
  };

  [[nodiscard]] bool has_stage(int64_t stage) const { return stages_.contains(stage); }
  [[nodiscard]] int64_t last_stage() const { return setup_.ranks * setup_.stages_per_rank - 1; }
  [[nodiscard]] std::string_view call(bool training) const {
    return training ? "Pipeline.train_step" : "Pipeline.forward";
  }
  void begin(Step& step, bool training, const at::Tensor& input);
  void split_target(Step& step, const at::Tensor& target);
  void run(Step& step);
  void execute(const Action& action, Step& step);
  void forward(const Action& action, Step& step);
  void backward(const Action& action, Step& step);
  [[nodiscard]] at::Tensor weighted_loss(const at::Tensor& output, int64_t micro_batch, Step& step) const;
  template <typename Run>
  void in_stage(const Action& action, const Step& step, std::string_view what, const Run& run) const;
  const std::vector<Action>& actions_for(const StepHeader& header);

  Setup setup_;
  std::map<int64_t, Stage> stages_;
  std::unique_ptr<Transport> transport_;
  std::function<void(int64_t micro_batches)> step_check_{};
  std::map<std::pair<bool, int64_t>, std::vector<Action>> actions_;  ///< by training and number of micro-batches
};

}  // namespace accelerate::pipeline

// SPDX-License-Identifier: Apache-2.0
// What all learning-rate schedules are: a factor that is a function of the number of optimizer steps.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace accelerate::optim {

/// A learning rate that is a function of the number of optimizer steps made.
///
/// Each parameter group's rate is base * factor(steps), base being its rate when the schedule was made; construction
/// sets it for 0 steps, each step() for one more. Python's numbers: LambdaLR in torch/optim/lr_scheduler.py.
/// (LibTorch's own StepLR lags one call behind Python's.) The optimizer must outlive the schedule.
class Scheduler {
 public:
  using Factor = std::function<double(int64_t steps)>;

  Scheduler(torch::optim::Optimizer& optimizer, Factor factor);

  /// One more optimizer step was made.
  void step();
  [[nodiscard]] int64_t steps() const { return steps_; }
  /// The rate of each parameter group now in force.
  [[nodiscard]] std::vector<double> get_last_lr() const;
  [[nodiscard]] torch::optim::Optimizer& optimizer() const { return *optimizer_; }

 private:
  void apply() const;

  torch::optim::Optimizer* optimizer_;
  Factor factor_;
  std::vector<double> base_;
  int64_t steps_ = 0;
};

}  // namespace accelerate::optim

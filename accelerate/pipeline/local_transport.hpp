// SPDX-License-Identifier: Apache-2.0
// Transfers between stages on several devices of one process. Private.
#pragma once

#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "accelerate/pipeline/transport.hpp"

namespace accelerate::pipeline {

class LocalTransport final : public Transport {
 public:
  /// \param devices  Device of each stage; unset for a stage without parameters, which takes its input as it is.
  explicit LocalTransport(std::vector<std::optional<at::Device>> devices) : devices_(std::move(devices)) {}

  StepHeader begin(StepHeader own, const at::Tensor& input) override;
  [[nodiscard]] bool sends_gradient(int64_t stage, at::ScalarType dtype) const override;
  void send(const Action& action, const at::Tensor& tensor) override;
  void start_receive(const Action&) override {}
  at::Tensor take(ActionKind kind, int64_t stage, int64_t micro_batch) override;
  void finish() override {}

 private:
  std::vector<std::optional<at::Device>> devices_;
  int64_t first_trainable_ = StepHeader::kNoStage;
  std::map<std::tuple<ActionKind, int64_t, int64_t>, at::Tensor> arrived_;  ///< by kind of the receive action
};

}  // namespace accelerate::pipeline

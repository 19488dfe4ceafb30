// SPDX-License-Identifier: Apache-2.0
// Forward and backward of one stage, micro-batch by micro-batch. Private.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "accelerate/precision/autocast.hpp"

namespace accelerate::pipeline {

class Stage {
 public:
  /// Computes the root of the backward from the output of the last stage.
  using Finish = std::function<at::Tensor(const at::Tensor& output)>;

  /// \param layers  At least one. Shared with the user's module.
  Stage(torch::nn::Sequential layers, std::optional<precision::AutocastRegion> autocast)
      : layers_(std::move(layers)), autocast_(autocast) {}

  /// Computes the output and keeps its graph for the backward.
  /// \param needs_gradient  True if take_input_gradient() follows the backward.
  /// \param finish          Called with the output within the autocast region; its result replaces the output. May be
  ///                        empty.
  void forward(int64_t micro_batch, const at::Tensor& input, bool needs_gradient, const Finish& finish);
  /// The output or the result of `finish`, without a graph.
  [[nodiscard]] at::Tensor output(int64_t micro_batch) const { return live_.at(micro_batch).root.detach(); }
  /// \param gradient  Gradient of the output. If undefined, the root is a loss.
  void backward(int64_t micro_batch, const at::Tensor& gradient);
  /// Returns the gradient of the input and forgets it: zeros if the output does not depend on the input, undefined if
  /// no gradient is needed.
  at::Tensor take_input_gradient(int64_t micro_batch);
  /// Forgets the micro-batch.
  void release(int64_t micro_batch) { live_.erase(micro_batch); }
  void release_all() { live_.clear(); }
  [[nodiscard]] bool is_trainable() const;
  void to(at::Device device);
  /// Device of to(), otherwise that of the first parameter or buffer, or nothing.
  [[nodiscard]] std::optional<at::Device> device() const;

 private:
  struct Live {
    at::Tensor input{};  ///< leaf that receives the gradient; undefined if none is needed
    at::Tensor root{};
  };

  torch::nn::Sequential layers_;
  std::optional<precision::AutocastRegion> autocast_;
  std::optional<at::Device> device_{};
  std::map<int64_t, Live> live_;  ///< micro-batches
};

}  // namespace accelerate::pipeline

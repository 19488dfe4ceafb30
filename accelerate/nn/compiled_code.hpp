// SPDX-License-Identifier: Apache-2.0
// Private: the compiled code of a package, and its node in the autograd graph.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "accelerate/nn/compiled_file.hpp"

namespace accelerate::nn::compiled {

class LoadedGraphs;

/// A package and its code, loaded on the first use of a device. Modules of one package share it. Thread-safe: calls on
/// one device are serialised, because the code is loaded for one thread at a time. (Otherwise each call would wait for
/// the GPU to finish the previous one.)
class CompiledCode {
 public:
  explicit CompiledCode(PackageFile file);
  ~CompiledCode();
  CompiledCode(const CompiledCode&) = delete;
  CompiledCode& operator=(const CompiledCode&) = delete;

  [[nodiscard]] const Record& record() const { return file_.record; }
  [[nodiscard]] const archive::Origin& origin() const { return file_.origin; }
  /// Returns an initial value with the strides of the record. The caller owns it.
  [[nodiscard]] at::Tensor initial_value(const TensorRow& row) const;
  /// \throws Error (environment) if the code cannot run on the device; see check_device().
  [[nodiscard]] LoadedGraphs& on(c10::Device device);

 private:
  PackageFile file_;
  std::mutex mutex_;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, std::unique_ptr<LoadedGraphs>> loaded_;
};

/// Parameters, buffers and inputs of one call, in the order of the record.
using CallTensors = std::vector<at::Tensor>;

/// Runs the training graph. With gradients enabled the outputs have a backward.
std::vector<at::Tensor> run_training(const std::shared_ptr<CompiledCode>& code, const CallTensors& tensors);
/// Runs the evaluation graph. A backward through the outputs is an Error (usage).
std::vector<at::Tensor> run_evaluation(const std::shared_ptr<CompiledCode>& code, const CallTensors& tensors);

}  // namespace accelerate::nn::compiled

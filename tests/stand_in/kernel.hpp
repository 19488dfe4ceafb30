// SPDX-License-Identifier: Apache-2.0
// One call of an operator on the device.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/stand_in/tensors.hpp"

namespace stand_in {

/// Runs the CPU kernel for tensors of the device. Deferred: the shapes of the results are known in advance, and the
/// call is a job. Immediate: it runs after the stream has reached this point, and new tensors receive their content in
/// stream order. Random numbers (drawn in the host's order), results that the host needs, and unknown shapes are
/// immediate.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack& stack);
  void run();

 private:
  using Tensors = std::vector<at::Tensor>;

  void take_arguments();
  void take_lists(size_t i, bool write);
  void take_generator();
  /// Converts an argument for the CPU kernel, and in for_meta for the meta kernel.
  at::Tensor take(const at::Tensor& tensor, bool write, bool out, at::Tensor& for_meta);
  void refuse_mixed_devices() const;
  void inspect_results();

  void run_later(const torch::jit::Stack& shapes);
  void run_now();
  [[nodiscard]] c10::IValue place(size_t result, const c10::IValue& like);
  [[nodiscard]] at::Tensor place(size_t result, const at::Tensor& like);

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  const std::string name_;
  torch::jit::Stack& stack_;
  torch::jit::Stack arguments_, cpu_, meta_;
  std::vector<Touch> touches_;
  std::optional<c10::Device> device_, stranger_;
  std::vector<size_t> outs_;      ///< indices of out arguments
  std::vector<int64_t> alias_;    ///< per result: index of the argument that it aliases, or -1 for a new tensor
  std::vector<Tensors> targets_;  ///< per result: the new tensors as CPU tensors
  bool later_ = true;
  bool host_result_ = false;  ///< true if the host needs the result, which counts as a wait
};

}  // namespace stand_in

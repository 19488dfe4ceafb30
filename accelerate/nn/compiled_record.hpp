// SPDX-License-Identifier: Apache-2.0
// Private: the record in a package of tools/export_compiled.py, which describes the compiled code.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/archive/origin.hpp"

namespace accelerate::nn::compiled {

/// Dtype, shape and strides that the compiled code expects. It checks none of them itself.
struct Layout {
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> shape{};   ///< -1 - i is the dynamic size i; a size below all dynamic ones is any
  std::vector<int64_t> stride{};  ///< empty if contiguous_only
  bool contiguous_only = false;   ///< strides depend on a dynamic size
};

enum class TensorKind { parameter, buffer, input };

/// One input of the compiled forward.
struct TensorRow {
  TensorKind kind = TensorKind::input;
  std::string name{};  ///< Python's name, or the position of an input
  Layout layout{};
  bool requires_grad = false;  ///< at export
  bool mutated = false;        ///< the training graph writes to it
  bool persistent = true;      ///< part of Python's state_dict
  uint64_t offset = 0;         ///< of the initial value in the weights, in bytes
  uint64_t bytes = 0;
};

/// Values of a dynamic size for which the compiled code is valid.
struct SizeRange {
  int64_t min = 2;
  int64_t max = 0;  ///< 0 if unlimited
  std::vector<int64_t> excluded{};

  [[nodiscard]] bool contains(int64_t size) const;
  /// "2 to 64 without 8".
  [[nodiscard]] std::string text() const;
};

enum class From { input, output, gradient };

/// One input of the compiled backward: a forward input or output, or the gradient of an output.
struct BackwardInput {
  From from = From::input;
  size_t index = 0;
};

struct Record {
  std::string torch{}, cuda{}, device{}, cuda_capability{}, machine{};
  std::vector<std::string> processor_flags{};
  std::string autocast{};  ///< dtype of the autocast region at export, "" without one
  int64_t threads = 0;     ///< of parallel CPU kernels; 0 if the process decides, and for older packages
  bool evaluation = false;
  bool returns_tensor = true;
  std::vector<TensorRow> tensors{};
  std::vector<bool> outputs_require_grad{};
  size_t saved = 0;  ///< forward outputs after the module's own, for the backward only
  std::vector<BackwardInput> takes{};
  std::vector<Layout> gradients{};  ///< of the From::gradient entries of takes, in order
  std::vector<size_t> gives{};      ///< for each backward output, the forward input of which it is the gradient
  std::vector<SizeRange> symbols{};
  std::vector<std::string> aliases{};  ///< further names of tied tensors, "alias = name"

  [[nodiscard]] size_t count(TensorKind kind) const;
};

/// \param weight_bytes  Size of the package's weights.
/// \throws Error (data) if the record has another format, is not JSON, lacks a member, or refers to tensors or bytes
///         that do not exist.
[[nodiscard]] Record read_record(std::string_view json, uint64_t weight_bytes, const archive::Origin& origin);

}  // namespace accelerate::nn::compiled

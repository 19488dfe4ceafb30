// SPDX-License-Identifier: Apache-2.0
// Estimates the memory of a model's weights, gradients and optimizer from a file's header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launch/commands/command.hpp"
#include "launch/commands/weights.hpp"

namespace accelerate::launch {

/// Tensors with names that differ only after the last dot: "conv1.weight" and "conv1.bias" form the layer conv1.
struct LayerSize {
  std::string name{};
  std::vector<std::string> tensors{};
  uint64_t parameters = 0;
  uint64_t numbers = 0;  ///< real numbers; a complex element has two
};

struct DtypeSize {
  std::string dtype{};
  uint64_t tensors = 0, elements = 0, bytes = 0;
};

struct ModelSize {
  std::vector<DtypeSize> dtypes{};  ///< in descending order of bytes
  uint64_t tensors = 0, bytes = 0;
  uint64_t parameters = 0;  ///< elements of floating-point and complex tensors, without counters and masks
  uint64_t numbers = 0;     ///< real numbers; a complex element has two
  uint64_t shared = 0;      ///< number of tensors that share the memory of a counted tensor
  LayerSize largest{};
};

/// Pure function. Memory that several tensors share is counted once.
/// \throws Error (data) for more than 2^56 bytes, which only expanded tensors can reach.
ModelSize size_of(const std::vector<Weight>& weights);

/// The program: accelerate_estimate_memory [options] FILE.
CommandResult estimate_memory(const Arguments& arguments);

}  // namespace accelerate::launch

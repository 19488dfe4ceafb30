// SPDX-License-Identifier: Apache-2.0
// How much memory a model's weights, gradients and optimizer take, from a file's header.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launch/commands/command.hpp"
#include "launch/commands/weights.hpp"

namespace accelerate::launch {

/// Tensors whose names differ only after the last dot: "conv1.weight" and "conv1.bias" form the layer conv1.
struct LayerSize {
  std::string name{};
  std::vector<std::string> tensors{};
  uint64_t parameters = 0;
  uint64_t numbers = 0;  ///< of which they consist: two in a complex one
};

struct DtypeSize {
  std::string dtype{};
  uint64_t tensors = 0, elements = 0, bytes = 0;
};

struct ModelSize {
  std::vector<DtypeSize> dtypes{};  ///< most bytes first
  uint64_t tensors = 0, bytes = 0;
  uint64_t parameters = 0;  ///< elements of floating and complex tensors; counters and masks are none
  uint64_t numbers = 0;     ///< of which they consist: two in a complex one
  uint64_t shared = 0;      ///< tensors whose memory was counted with another tensor
  LayerSize largest{};
};

/// Pure function. Memory that several tensors share is counted once.
/// \throws Error (data) for more than 2^56 bytes, which only expanded tensors can reach.
ModelSize size_of(const std::vector<Weight>& weights);

/// The program: accelerate_estimate_memory [options] FILE
Answer estimate_memory(const Arguments& arguments);

}  // namespace accelerate::launch

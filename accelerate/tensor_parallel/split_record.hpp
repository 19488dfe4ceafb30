// SPDX-License-Identifier: Apache-2.0
// Private: remembers which parameters are parts of split layers, for components that know parameters only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "accelerate/tensor_parallel/parameter_split.hpp"

namespace accelerate::nn {

/// Part of a parameter that a rank has.
struct RecordedPart {
  int64_t part = 0;   ///< from 0 to parts - 1
  int64_t parts = 1;  ///< at least 2
  ParameterSplit split{};

  bool operator==(const RecordedPart&) const = default;
};

/// Records a parameter until it is destroyed. Thread-safe.
void record_part(const at::Tensor& parameter, const RecordedPart& part);

/// Returns the part of a parameter of a split layer; nothing for other tensors. Thread-safe.
[[nodiscard]] std::optional<RecordedPart> recorded_part(const at::Tensor& parameter);

/// Returns the parameters that are parts of split layers, and the others. Thread-safe.
[[nodiscard]] std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>> parts_and_others(
    const std::vector<at::Tensor>& parameters);

}  // namespace accelerate::nn

// SPDX-License-Identifier: Apache-2.0
// What was gathered in a loop's last batch, without what only filled it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/state/batch_info.hpp"

namespace accelerate::prepared {

/// Whether the loop is at a last batch of which some rows only fill it.
[[nodiscard]] inline bool is_filled(const state::BatchInfo& position) {
  return position.last && position.remainder > 0;
}

/// gathered   [rows, ...] of all ranks, a rank's rows after another's, as many of each
/// last       of the loop; its remainder is above 0
[[nodiscard]] at::Tensor without_filling(const at::Tensor& gathered, const state::BatchInfo& last, int64_t ranks);
[[nodiscard]] std::vector<std::string> without_filling(std::vector<std::string> gathered, const state::BatchInfo& last,
                                                       int64_t ranks);

}  // namespace accelerate::prepared

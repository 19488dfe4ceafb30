// SPDX-License-Identifier: Apache-2.0
// Removes the padding of a loop's last batch from gathered values.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/state/batch_info.hpp"

namespace accelerate::prepared {

/// Whether the loop is at a last batch that contains padding.
[[nodiscard]] inline bool is_filled(const state::BatchInfo& position) {
  return position.last && position.remainder > 0;
}

/// \param gathered  [rows, ...] of all ranks in rank order, equally many rows per rank.
/// \param last      Position of the loop, with a remainder above 0.
[[nodiscard]] at::Tensor drop_padding(const at::Tensor& gathered, const state::BatchInfo& last, int64_t ranks);
[[nodiscard]] std::vector<std::string> drop_padding(std::vector<std::string> gathered, const state::BatchInfo& last,
                                                    int64_t ranks);

}  // namespace accelerate::prepared

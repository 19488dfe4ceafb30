// SPDX-License-Identifier: Apache-2.0
// Checks whether all ranks have the same tensors, bit for bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/comm/group.hpp"

namespace accelerate::nn {

struct CheckedTensor {
  std::string name;  ///< name in messages: "parameter fc.weight"
  at::Tensor tensor;
};

/// Which ranks have the same tensors: those with the same index.
struct ComparedPart {
  int64_t index = 0;  ///< 0 <= index < count
  int64_t count = 1;  ///< the same on all ranks
};

/// Compares names, shapes, dtypes and values of the ranks' tensors. Does nothing with one rank. Costs one pass over the
/// tensors and one all-reduce of 16 bytes per part; the tensors are listed only if they differ. Collective.
///
/// \param when  Suffix of the message, for example "after 40 optimizer steps".
/// \param part  If the ranks have different parts of the tensors, the part of this rank.
/// \throws Error (usage), the same on every rank, if they differ: it names the first differing tensor, its shape, the
///         ranks that agree, and the number of further differences.
void check_synchronized(const comm::Group& group, const std::vector<CheckedTensor>& tensors, std::string_view when = {},
                        const ComparedPart& part = {});

}  // namespace accelerate::nn

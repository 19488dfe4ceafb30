// SPDX-License-Identifier: Apache-2.0
// Whether all ranks hold the same tensors, bit for bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>
#include <vector>

#include "accelerate/comm/group.hpp"

namespace accelerate::nn {

struct CheckedTensor {
  std::string name;  ///< as a message says it: "parameter fc.weight"
  at::Tensor tensor;
};

/// Throws on every rank the same Error (usage) when the ranks' tensors differ: it names the first that does, its shape,
/// which ranks agree on it and how many more differ. Names, shapes and dtypes count too. Nothing with one rank.
///
/// when   what the message adds, e.g. "after 40 optimizer steps"
/// Cost: one pass over the tensors, one all-reduce of 16 bytes; a list of all tensors only when they differ.
void check_synchronized(const comm::Group& group, const std::vector<CheckedTensor>& tensors,
                        std::string_view when = {});

}  // namespace accelerate::nn

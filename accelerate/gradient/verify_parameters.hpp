// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/gradient/named_tensor.hpp"

namespace accelerate::gradient {

/// Compares the tensors of all ranks by name, order, shape, dtype, requires_grad and offload, not by value. Costs one
/// reduction of three integers if all ranks agree.
///
/// \param what  "parameter" or "buffer", for the message.
/// \throws Error (usage), the same on every rank, if a rank differs from rank 0: it names the first difference, both
///         descriptions and the rank.
void verify_parameters(const comm::Group& group, std::string_view what, const std::vector<NamedTensor>& tensors);

/// Returns "0.weight [20, 10] Float", with ", frozen" if `what` is "parameter" and a floating-point tensor needs no
/// gradient, and with ", offloaded" if its values are on the CPU or the disk.
[[nodiscard]] std::string describe_tensor(const NamedTensor& tensor, std::string_view what);

}  // namespace accelerate::gradient

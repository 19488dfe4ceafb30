// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/gradient/named_tensor.hpp"

namespace accelerate::gradient {

/// Throws on every rank the same Error (usage) when a rank has other tensors than rank 0: it names the first that
/// differs, both descriptions and the rank. Names, order, shapes, dtypes and requires_grad count; values do not.
///
/// what   "parameter" or "buffer", for the text
/// Cost: one reduction of three integers while all agree.
void require_same(const comm::Group& group, std::string_view what, const std::vector<NamedTensor>& tensors);

/// "0.weight [20, 10] Float", with ", frozen" when a floating tensor of what "parameter" needs no gradient.
[[nodiscard]] std::string describe(const NamedTensor& tensor, std::string_view what);

}  // namespace accelerate::gradient

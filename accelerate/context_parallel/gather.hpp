// SPDX-License-Identifier: Apache-2.0
// Private: the collectives of context parallelism with gradients, and the order of the gathered tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "accelerate/comm/group.hpp"

namespace accelerate::nn {

/// Returns the tensors of all P ranks as [P, n, ...] in one all-gather. Backward is one reduce-scatter of the sum. Can
/// be differentiated any number of times.
///
/// \param call  Name of the user's operation, for messages.
/// \param part  [n, ...], the same shape and dtype on all ranks; any strides.
at::Tensor gather_of_sequence(std::string_view call, const at::Tensor& part, const comm::Group& group);

/// Returns the whole sequence in the order of its tokens.
///
/// \param parts  [P, ...], the parts of split_sequence() in rank order.
/// \param dim    Dimension of the sequence in a part.
at::Tensor in_token_order(const at::Tensor& parts, int64_t dim);

/// \param what  Name of the tensor, for the message.
/// \throws Error (usage) if the number of tokens is odd.
void check_two_chunks(std::string_view call, std::string_view what, const at::Tensor& part, int64_t dim,
                      const comm::Group& group);

}  // namespace accelerate::nn

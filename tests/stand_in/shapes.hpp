// SPDX-License-Identifier: Apache-2.0
// Computes shapes of results in advance, so that the host need not wait for them.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string>

namespace stand_in {

/// The operator's results as meta tensors: by LibTorch's meta kernel or, for operators without one in C++ that training
/// needs, by a rule here. Returns nothing if the shapes are unknown in advance.
///
/// \param arguments  With tensors on meta; out arguments receive their new shape.
std::optional<torch::jit::Stack> shapes_of(const c10::OperatorHandle& op, const std::string& name,
                                           const torch::jit::Stack& arguments);

/// True for BatchNorm's running statistics, which its schema does not mark as written.
bool writes_silently(const std::string& name, size_t argument);

}  // namespace stand_in

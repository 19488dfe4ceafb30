// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "accelerate/gradient/named_tensor.hpp"

namespace torch {
namespace nn {
class Module;
}
namespace jit {
struct Module;
}
}  // namespace torch

namespace accelerate::prepared {

/// Returns the parameters or buffers with dotted names, in the module's order. The order is the same on every rank that
/// constructs the same module.
std::vector<gradient::NamedTensor> named_parameters(const torch::nn::Module& module);
std::vector<gradient::NamedTensor> named_buffers(const torch::nn::Module& module);
std::vector<gradient::NamedTensor> named_parameters(const torch::jit::Module& module);
std::vector<gradient::NamedTensor> named_buffers(const torch::jit::Module& module);

}  // namespace accelerate::prepared

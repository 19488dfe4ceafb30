// SPDX-License-Identifier: Apache-2.0
// A fully connected layer that adds its bias within the matrix product.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace accelerate::nn {

/// torch::nn::Linear that computes inputs of any number of dimensions with one addmm. LibTorch's layer does so only for
/// inputs of 2 dimensions; for others it adds the bias in a second pass over the output.
///
/// Options, parameters, their names and initial values are those of torch::nn::Linear, so state dicts are exchangeable.
/// Results for inputs of 3 and more dimensions may differ from LibTorch's in the last bits, because the sum is rounded
/// once. The class derives from LibTorch's, so `module.as<torch::nn::Linear>()` finds the layer; `forward()` of that
/// pointer is LibTorch's. Thread-safe as torch::nn::Linear.
class LinearImpl : public torch::nn::LinearImpl {
 public:
  using torch::nn::LinearImpl::LinearImpl;
  /// Shares options, parameters and mode with the other layer. No random numbers are drawn.
  explicit LinearImpl(const torch::nn::LinearImpl& stock);

  /// \param input  [..., in_features].
  /// \returns [..., out_features].
  at::Tensor forward(const at::Tensor& input);

  /// \returns an accelerate::nn::LinearImpl with copies of the parameters.
  std::shared_ptr<torch::nn::Module> clone(const std::optional<at::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;
};

/// `accelerate::nn::Linear out(768, 50257);`
/// `accelerate::nn::Linear in(torch::nn::LinearOptions(768, 2304).bias(false));`
TORCH_MODULE(Linear);

/// Result of convert_linear(), with dotted names in the order of the module.
struct LinearConversion {
  struct Kept {
    std::string name;
    std::string reason;
  };
  std::vector<std::string> exchanged{};
  std::vector<Kept> kept{};
};

/// Replaces every torch::nn::Linear in a Sequential, ModuleList or ModuleDict anywhere in the module by an
/// accelerate::nn::Linear with the same parameters, name and mode. Optimizers, prepared models and state dicts remain
/// valid, so the call may precede or follow prepare(). A graph of a captured step keeps the kernels that it recorded.
///
/// A layer that is a member of a user-defined class cannot be replaced, because the class would still call the old
/// layer. Neither can a class derived from torch::nn::Linear. Those are reported and still run. Layers that are
/// accelerate::nn::Linear already are not reported.
///
/// \note A pointer to LibTorch's layer, such as `list[0]->as<torch::nn::Linear>()`, still calls LibTorch's forward().
LinearConversion convert_linear(torch::nn::Module& module);

/// Overload for a module holder.
template <typename Contained>
LinearConversion convert_linear(const torch::nn::ModuleHolder<Contained>& holder) {
  return convert_linear(*holder.ptr());
}

}  // namespace accelerate::nn

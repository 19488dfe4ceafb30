// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/spare_tensors.hpp"

namespace accelerate::optim {

at::Tensor take_spare(SpareTensors& spare, std::string_view name, at::IntArrayRef sizes, at::IntArrayRef strides,
                      const at::TensorOptions& options) {
  const auto entry = spare.extract(name);
  if (entry.empty() || !entry.mapped().defined()) return {};
  at::Tensor& tensor = entry.mapped();
  const bool fits = tensor.layout() == c10::kStrided && tensor.sizes() == sizes && tensor.strides() == strides &&
                    tensor.dtype() == options.dtype() && tensor.device() == options.device() &&
                    !tensor.requires_grad() && !tensor.is_inference();
  // Memory may be absent for a while, for example of offloaded tensors.
  const bool is_whole = fits && tensor.storage().nbytes() >= tensor.nbytes();
  const bool is_unused = is_whole && tensor.use_count() == 1 && tensor.storage().use_count() == 1;
  return is_unused ? std::move(tensor) : at::Tensor();
}

}  // namespace accelerate::optim

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/compiled_layout.hpp"

#include <ATen/ops/empty_strided.h>
#include <fmt/ranges.h>

namespace accelerate::nn::compiled {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::vector<std::string> parts;
  for (const int64_t size : shape) parts.push_back(size < 0 ? "any" : std::to_string(size));
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

void bind(int64_t size, size_t symbol, const std::string& name, std::vector<int64_t>& sizes, const Record& record,
          const archive::Origin& origin) {
  if (symbol >= sizes.size()) return;  // a size that PyTorch derives from others
  const SizeRange& range = record.symbols[symbol];
  if (!range.contains(size)) {
    origin.fail(ErrorKind::usage, "{} has {} in a dynamic dimension, the package was compiled for {}", name, size,
                range.text());
  }
  if (sizes[symbol] == -1) sizes[symbol] = size;
  if (sizes[symbol] != size) {
    origin.fail(ErrorKind::usage,
                "{} has {} in a dynamic dimension, an earlier input has {}; they must be equal, as in the example "
                "of the export",
                name, size, sizes[symbol]);
  }
}

bool has_strides(const at::Tensor& tensor, const Layout& layout) {
  if (layout.contiguous_only) return tensor.is_contiguous();
  for (size_t d = 0; d < layout.stride.size(); ++d) {
    const auto dim = static_cast<int64_t>(d);
    if (tensor.size(dim) > 1 && tensor.stride(dim) != layout.stride[d]) return false;
  }
  return true;
}

}  // namespace

at::Tensor copy_with_strides(const at::Tensor& tensor, at::IntArrayRef strides) {
  return at::empty_strided(tensor.sizes(), strides, tensor.options().requires_grad(false)).copy_(tensor);
}

at::Tensor fit(const at::Tensor& tensor, const Layout& layout, const std::string& name, c10::Device device,
               std::vector<int64_t>& sizes, const Record& record, const archive::Origin& origin) {
  if (!tensor.defined()) origin.fail(ErrorKind::usage, "{} is undefined, must be a tensor", name);
  if (tensor.scalar_type() != layout.dtype) {
    origin.fail(ErrorKind::usage,
                "{} has dtype {}, the package was compiled for {}; convert it, or export the module with this dtype",
                name, c10::toString(tensor.scalar_type()), c10::toString(layout.dtype));
  }
  if (tensor.device() != device) {
    origin.fail(ErrorKind::usage, "{} is on {}, the parameters are on {}; move it with to()", name,
                tensor.device().str(), device.str());
  }
  bool same = tensor.dim() == static_cast<int64_t>(layout.shape.size()) && tensor.layout() == at::kStrided;
  for (size_t d = 0; same && d < layout.shape.size(); ++d) {
    same = layout.shape[d] < 0 || layout.shape[d] == tensor.size(static_cast<int64_t>(d));
  }
  if (!same) {
    origin.fail(ErrorKind::usage,
                "{} is [{}], the package was compiled for {}; export the module with this shape or with a dynamic size",
                name, fmt::join(tensor.sizes(), ", "), shape_text(layout.shape));
  }
  for (size_t d = 0; d < layout.shape.size(); ++d) {
    if (layout.shape[d] >= 0) continue;
    bind(tensor.size(static_cast<int64_t>(d)), static_cast<size_t>(-1 - layout.shape[d]), name, sizes, record, origin);
  }
  if (!has_strides(tensor, layout)) {
    if (layout.contiguous_only) return tensor.contiguous();
    return copy_with_strides(tensor, layout.stride);
  }
  if (reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0) return tensor;
  return copy_with_strides(tensor, tensor.strides());
}

}  // namespace accelerate::nn::compiled

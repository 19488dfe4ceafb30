// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/transforms/to_float.hpp"

#include "accelerate/base/error.hpp"

namespace accelerate::data {

at::Tensor ToFloat::operator()(const at::Tensor& images, const ReadContext& pass) const {
  if (images.is_floating_point()) return images;
  if (images.scalar_type() != at::kByte)
    base::fail(ErrorKind::data, {}, "to_float", "the images are {}, must be Byte or of floating point",
               c10::toString(images.scalar_type()));
  if (!images.is_cpu() || !images.is_contiguous()) return images.to(at::kFloat).div_(255);
  return memory_->take(images.sizes(), at::kFloat, pass.pinned).copy_(images).div_(255);
}

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/transforms/random_flip.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <c10/util/StringUtil.h>

#include "accelerate/base/error.hpp"

namespace accelerate::data {

RandomHorizontalFlip::RandomHorizontalFlip(double p) : p_(p) {
  if (!(p >= 0.0 && p <= 1.0)) base::fail(ErrorKind::usage, {}, "random_horizontal_flip", "p is {}, must be 0 to 1", p);
}

at::Tensor RandomHorizontalFlip::operator()(const at::Tensor& images, const TransformContext& context) const {
  const int64_t count = context.indices.size(0);
  if (images.dim() < 2 || images.size(0) != count)
    base::fail(ErrorKind::data, {}, "random_horizontal_flip", "the images are [{}], must be [{}, ..., W]",
               c10::Join(", ", images.sizes()), count);
  std::vector<int64_t> of_image(static_cast<size_t>(images.dim()), 1);
  of_image.front() = count;
  auto flipped = at::empty({count}, at::TensorOptions().dtype(at::kBool));
  auto* const flips = flipped.mutable_data_ptr<bool>();
  for (int64_t i = 0; i < count; ++i) flips[i] = context.random(i).uniform() < p_;
  return at::where(flipped.view(of_image).to(images.device()), images.flip(-1), images);
}

}  // namespace accelerate::data

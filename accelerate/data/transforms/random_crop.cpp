// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/transforms/random_crop.hpp"

#include <ATen/ops/full.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstring>

#include "accelerate/base/error.hpp"

namespace accelerate::data {
namespace {

/// Copies the rows of one plane that the window and the image share.
struct CropWindow {
  int64_t height, width;          // image size
  int64_t out_height, out_width;  // window size
  int64_t top, left;              // window position in the image, negative in the padding

  void copy(const std::byte* image, std::byte* out, size_t pixel) const {
    const int64_t first = std::max<int64_t>(0, -left);
    const int64_t last = std::min(out_width, width - left);
    if (first >= last) return;
    for (int64_t y = std::max<int64_t>(0, -top); y < std::min(out_height, height - top); ++y) {
      std::memcpy(out + static_cast<size_t>(y * out_width + first) * pixel,
                  image + static_cast<size_t>((top + y) * width + left + first) * pixel,
                  static_cast<size_t>(last - first) * pixel);
    }
  }
};

}  // namespace

RandomCrop::RandomCrop(const RandomCropOptions& options) : options_(options) {
  const auto [height, width] = options.size;
  if (height < 1 || width < 1)
    base::fail(ErrorKind::usage, {}, "random_crop", "size is {}x{}, must be at least 1x1", height, width);
  if (options.padding < 0)
    base::fail(ErrorKind::usage, {}, "random_crop", "padding is {}, must be at least 0", options.padding);
}

at::Tensor RandomCrop::operator()(const at::Tensor& images, const TransformContext& context) const {
  const int64_t count = context.indices.size(0);
  if (images.dim() < 3 || images.size(0) != count || !images.is_cpu())
    base::fail(ErrorKind::data, {}, "random_crop", "the images are [{}] on {}, must be [{}, ..., H, W] on the CPU",
               c10::Join(", ", images.sizes()), images.device().str(), count);
  CropWindow window{.height = images.size(-2),
                    .width = images.size(-1),
                    .out_height = options_.size[0],
                    .out_width = options_.size[1],
                    .top = 0,
                    .left = 0};
  const int64_t rows = window.height + 2 * options_.padding - window.out_height;
  const int64_t columns = window.width + 2 * options_.padding - window.out_width;
  if (rows < 0 || columns < 0)
    base::fail(ErrorKind::data, {}, "random_crop", "the images are {}x{} and {} pixels of padding, size is {}x{}",
               window.height, window.width, options_.padding, window.out_height, window.out_width);

  const at::Tensor from = images.detach().contiguous().resolve_conj().resolve_neg();
  auto shape = images.sizes().vec();
  shape[shape.size() - 2] = window.out_height;
  shape[shape.size() - 1] = window.out_width;
  at::Tensor cropped = at::full(shape, options_.fill, from.options());
  const size_t pixel = from.element_size();
  const auto* image = static_cast<const std::byte*>(from.const_data_ptr());
  auto* out = static_cast<std::byte*>(cropped.mutable_data_ptr());
  const int64_t planes = count == 0 ? 0 : from.numel() / std::max<int64_t>(1, count * window.height * window.width);
  for (int64_t i = 0; i < count; ++i) {
    SampleRandom random = context.random(i);
    window.top = random.below(rows + 1) - options_.padding;
    window.left = random.below(columns + 1) - options_.padding;
    for (int64_t plane = 0; plane < planes; ++plane) {
      window.copy(image, out, pixel);
      image += static_cast<size_t>(window.height * window.width) * pixel;
      out += static_cast<size_t>(window.out_height * window.out_width) * pixel;
    }
  }
  return cropped;
}

}  // namespace accelerate::data

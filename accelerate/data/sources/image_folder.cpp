// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/image_folder.hpp"

#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/upsample_bilinear2d.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "accelerate/base/log.hpp"
#include "accelerate/data/derived_source.hpp"
#include "accelerate/data/parallel_for_samples.hpp"
#include "accelerate/data/sources/files.hpp"
#include "accelerate/data/sources/image.hpp"
#include "accelerate/data/sources/image_files.hpp"
#include "accelerate/data/workers.hpp"

namespace accelerate::data {
namespace {

std::array<int64_t, 2> size_of(const at::Tensor& image) { return {image.size(1), image.size(2)}; }

void check_image_folder(const ImageFolder& folder) {
  if (folder.dtype != at::kFloat && folder.dtype != at::kByte)
    base::fail(ErrorKind::usage, {}, kFolderOperation, "dtype is {}, must be float32 or uint8",
               dtype_name(folder.dtype));
  if (folder.size && ((*folder.size)[0] < 1 || (*folder.size)[1] < 1))
    base::fail(ErrorKind::usage, {}, kFolderOperation, "size is {}x{}, must be at least 1x1", (*folder.size)[0],
               (*folder.size)[1]);
}

}  // namespace

ImageFolderSource::ImageFolderSource(const ImageFolder& folder) : folder_(folder) {
  check_image_folder(folder_);
  find_samples();
  if (folder_.size) size_ = *folder_.size;
  if (folder_.on_error == OnError::skip) {
    drop_broken();
  } else if (!folder_.size) {
    try {
      size_ = size_of(pixels(samples_[0].path));
    } catch (const BrokenImage&) {
      refuse(0);
    }
  }
}

void ImageFolderSource::find_samples() {
  for (auto& found : find_images(folder_.path)) {
    for (auto& image : found.images) samples_.push_back({std::move(image), static_cast<int64_t>(classes_.size())});
    classes_.push_back(std::move(found.name));
  }
  if (folder_.classes && *folder_.classes != static_cast<int64_t>(classes_.size()))
    base::fail(ErrorKind::data, {}, kFolderOperation, "{} has {} folders: expected {}, one for each class",
               folder_.path.string(), classes_.size(), *folder_.classes);
}

void ImageFolderSource::drop_broken() {
  size_t first = 0;  // all images must have the size of the first intact one
  std::vector<std::string> problems(samples_.size());
  for (; !folder_.size && first < samples_.size() && size_[0] == 0; ++first) {
    try {
      size_ = size_of(pixels(samples_[first].path));
    } catch (const BrokenImage&) {
      problems[first] = problem_of(samples_[first].path);
    }
  }
  const auto others = at::empty({size() - static_cast<int64_t>(first)}, at::TensorOptions().dtype(at::kByte));
  parallel_for_samples(others, /*grain=*/1, [&](int64_t begin, int64_t count) {
    for (auto i = first + static_cast<size_t>(begin); count > 0; ++i, --count)
      problems[i] = problem_of(samples_[i].path);
  });
  std::vector<Sample> whole;
  std::string first_problem;
  for (size_t i = 0; i < samples_.size(); ++i) {
    if (problems[i].empty()) {
      whole.push_back(std::move(samples_[i]));
    } else if (first_problem.empty()) {
      first_problem = problems[i];
    }
  }
  const auto all = samples_.size();
  samples_ = std::move(whole);
  skipped_ = static_cast<int64_t>(all - samples_.size());
  if (samples_.empty())
    base::fail(ErrorKind::data, {}, kFolderOperation, "all {} images are broken; the first: {}", all, first_problem);
  if (skipped_ > 0)
    base::log_once(base::LogLevel::warning, {}, "image_folder: {} of {} images are left out; the first: {}", skipped_,
                   all, first_problem);
}

/// Decodes the image, and resizes it if ImageFolder::size is set.
at::Tensor ImageFolderSource::pixels(const std::filesystem::path& path) const {
  at::Tensor image = decode_image(read_file(path, kFolderOperation));
  if (!folder_.size || size_of(image) == *folder_.size) return image;
  image = image.unsqueeze(0);
  image = folder_.antialias ? at::_upsample_bilinear2d_aa(image, *folder_.size, /*align_corners=*/false)
                            : at::upsample_bilinear2d(image, *folder_.size, /*align_corners=*/false);
  return image.squeeze(0);
}

/// Returns the defect of a file, or "" if it has none.
std::string ImageFolderSource::problem_of(const std::filesystem::path& path) const {
  try {
    const auto found = size_of(pixels(path));
    if (found == size_ || size_[0] == 0) return {};
    return fmt::format("{} is {}x{} pixels: expected {}x{}, as the first; ImageFolder::size makes all equal",
                       path.string(), found[0], found[1], size_[0], size_[1]);
  } catch (const BrokenImage& broken) {
    return fmt::format("{} does not decode: {}", path.string(), broken.what());
  }
}

void ImageFolderSource::refuse(int64_t sample) const {
  base::fail(ErrorKind::data, {}, kFolderOperation, "sample {}, {}; OnError::skip skips such samples", sample,
             problem_of(samples_[static_cast<size_t>(sample)].path));
}

Batch ImageFolderSource::read_in_pass(const at::Tensor& requested, const ReadContext& context) const {
  const at::Tensor indices = checked_indices(kFolderOperation, requested, size());
  const int64_t count = indices.size(0);
  const bool as_bytes = folder_.dtype == at::kByte;
  const at::Tensor bytes =
      memory_.take({count, 3, size_[0], size_[1]}, at::kByte, /*pinned=*/as_bytes && context.pinned);
  const at::Tensor labels = memory_.take({count}, at::kLong, context.pinned);
  const auto* const index = indices.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    const auto& sample = samples_[static_cast<size_t>(index[i])];
    now_reading(index[i]);
    try {
      const at::Tensor image = pixels(sample.path);
      if (size_of(image) != size_) refuse(index[i]);
      bytes.select(0, i).copy_(image);
    } catch (const BrokenImage&) {
      refuse(index[i]);
    }
    labels.data_ptr<int64_t>()[i] = sample.label;
  }
  if (as_bytes) return {.data = bytes, .target = labels};
  return {.data = memory_.take(bytes.sizes(), at::kFloat, context.pinned).copy_(bytes).div_(255), .target = labels};
}

Loader image_folder(const ImageFolder& folder, const LoaderOptions& options) {
  return Loader(std::make_shared<ImageFolderSource>(folder), options);
}

}  // namespace accelerate::data

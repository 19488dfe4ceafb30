// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/data/batch_buffer_pool.hpp"
#include "accelerate/data/loader.hpp"
#include "accelerate/data/sources/on_error.hpp"

namespace accelerate::data {

/// A folder with one subfolder per class with .jpg, .jpeg and .png files, as torchvision's ImageFolder: labels count
/// the subfolders in the order of their names; samples are in the order of subfolders, then of files. Hidden folders
/// (".ipynb_checkpoints") and images of other formats (.bmp, .tiff, .webp) are omitted. A warning lists both.
struct ImageFolder {
  std::filesystem::path path;
  /// Height and width to which every image is resized (bilinear). If unset, all images must have the first one's size.
  std::optional<std::array<int64_t, 2>> size{};
  /// If true, averages all pixels that a smaller image omits, as torchvision's Resize does; otherwise uses four.
  bool antialias = true;
  /// float32: pixel / 255, as torchvision's ToTensor; uint8: the pixels.
  at::ScalarType dtype = at::kFloat;
  /// Treatment of an image that cannot be decoded or has another size. With skip, several threads decode every image
  /// once before the first epoch, so that all ranks know the same samples.
  OnError on_error = OnError::fail;
  /// Required number of class folders. If unset, any number from 1.
  std::optional<int64_t> classes{};
};

/// Images are read and decoded on demand.
class ImageFolderSource final : public Source {
 public:
  /// \throws Error (io) for a missing folder; Error (data) for one without classes, a class without images of these
  ///         formats, another number of classes than requested, and if every image is broken.
  explicit ImageFolderSource(const ImageFolder& folder);

  [[nodiscard]] int64_t size() const override { return static_cast<int64_t>(samples_.size()); }
  /// data [B, 3, H, W] of the given dtype, target [B] int64, in reused memory. \throws Error (data) with file and
  /// sample.
  [[nodiscard]] Batch read(const at::Tensor& indices) const override { return read_in_pass(indices, {}); }
  [[nodiscard]] Batch read_in_pass(const at::Tensor& indices, const ReadContext& context) const override;

  /// Names of the folders; labels are indices into them.
  [[nodiscard]] const std::vector<std::string>& classes() const { return classes_; }
  /// Number of omitted images.
  [[nodiscard]] int64_t skipped() const { return skipped_; }

 private:
  struct Sample {
    std::filesystem::path path;
    int64_t label;
  };
  void find_samples();
  void drop_broken();
  [[nodiscard]] at::Tensor pixels(const std::filesystem::path& path) const;
  [[nodiscard]] std::string problem_of(const std::filesystem::path& path) const;
  [[noreturn]] void refuse(int64_t sample) const;

  ImageFolder folder_;
  std::vector<std::string> classes_;
  std::vector<Sample> samples_;
  std::array<int64_t, 2> size_{};  // image size in batches
  int64_t skipped_ = 0;
  mutable BatchBufferPool memory_;
};

/// A loader over ImageFolderSource: image_folder({.path = "train", .size = {{64, 64}}}, {.batch_size = 32}).
/// \note JPEG requires libjpeg and PNG libpng when Accelerate is built (Debian: libjpeg-dev, libpng-dev). Without the
///       library, the first such image throws Error (environment).
[[nodiscard]] Loader image_folder(const ImageFolder& folder, const LoaderOptions& options = {});

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/cifar.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <fmt/ranges.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/data/sources/byte_images.hpp"
#include "accelerate/data/sources/files.hpp"
#include "accelerate/data/sources/labels.hpp"

namespace accelerate::data {
namespace {

constexpr int64_t kCifarSide = 32;
constexpr int64_t kCifarPixels = 3 * kCifarSide * kCifarSide;

/// File format: each record has the labels, then the red, green and blue pixels.
struct CifarFiles {
  std::string_view set;
  std::string_view archive;  // name of the published archive
  std::string_view subfolder;
  std::vector<std::string> names;
  int64_t label_bytes;
  int64_t label;  // index of the label byte in a record
  int64_t classes;
};

std::vector<std::filesystem::path> find_cifar(std::filesystem::path folder, const CifarFiles& files) {
  if (std::filesystem::is_directory(folder / files.subfolder)) folder /= files.subfolder;
  std::vector<std::filesystem::path> found;
  for (const auto& name : files.names) {
    found.push_back(folder / name);
    if (std::filesystem::exists(found.back())) continue;
    base::fail(ErrorKind::io, {}, files.set,
               "{} {}; put {} there, from {} of https://www.cs.toronto.edu/~kriz/cifar.html", folder.string(),
               std::filesystem::is_directory(folder) ? "has no " + name : "is not a folder",
               fmt::join(files.names, ", "), files.archive);
  }
  return found;
}

/// Counts the complete records.
///
/// \param left_out  Receives an incomplete record. If null, an incomplete record throws.
int64_t count_images(const MappedFile& file, const CifarFiles& files, SkippedSamples* left_out) {
  const auto record = static_cast<uint64_t>(files.label_bytes + kCifarPixels);
  if (file.size() == 0 || file.size() % record != 0) {
    const auto problem =
        fmt::format("{} has {} bytes: expected a multiple of {}, {} and 3x32x32 pixels an image", file.path().string(),
                    file.size(), record, files.label_bytes == 1 ? "a label" : "2 labels");
    if (left_out == nullptr) base::fail(ErrorKind::data, {}, files.set, "{}", problem);
    left_out->add(1, problem);
  }
  return static_cast<int64_t>(file.size() / record);
}

Loader load_cifar(const std::filesystem::path& folder, const LoaderOptions& options, const CifarFiles& files,
                  const ColourNormalisation& normalisation, OnError on_error) {
  std::vector<std::unique_ptr<MappedFile>> parts;
  std::vector<int64_t> counts;
  SkippedSamples left_out;
  const bool skips = on_error == OnError::skip;
  int64_t count = 0;
  for (const auto& path : find_cifar(folder, files)) {
    parts.push_back(std::make_unique<MappedFile>(path, files.set));
    counts.push_back(count_images(*parts.back(), files, skips ? &left_out : nullptr));
    count += counts.back();
  }
  const int64_t all = count + left_out.samples;
  const auto images = at::empty({count, 3, kCifarSide, kCifarSide}, at::TensorOptions().dtype(at::kByte));
  const auto labels = at::empty({count}, at::TensorOptions().dtype(at::kLong));
  auto* pixels_to = images.data_ptr<uint8_t>();
  auto* label_to = labels.data_ptr<int64_t>();
  int64_t first = 0;
  std::vector<at::Tensor> whole;
  for (size_t number = 0; number < parts.size(); ++number) {
    const auto& part = parts[number];
    const int64_t here = counts[number];
    const auto* record = reinterpret_cast<const uint8_t*>(part->text().data());
    for (int64_t i = 0; i < here; ++i, record += files.label_bytes + kCifarPixels, pixels_to += kCifarPixels) {
      *label_to++ = record[files.label];
      std::memcpy(pixels_to, record + files.label_bytes, static_cast<size_t>(kCifarPixels));
    }
    const auto of_part = labels.slice(0, first, first + here);
    if (skips) {
      whole.push_back(with_labels(of_part, files.classes, part->path(), left_out).add_(first));
    } else {
      check_labels(of_part, files.classes, part->path(), files.set);
    }
    first += here;
  }
  left_out.tell(files.set, all);
  if (left_out.samples > 0) {
    const auto places = at::cat(whole);
    return Loader(std::make_shared<ByteImages>(images.index_select(0, places), labels.index_select(0, places),
                                               normalisation.mean, normalisation.deviation),
                  options);
  }
  return Loader(std::make_shared<ByteImages>(images, labels, normalisation.mean, normalisation.deviation), options);
}

}  // namespace

Loader cifar10(const std::filesystem::path& folder, const LoaderOptions& options, Split split,
               const ColourNormalisation& normalisation, OnError on_error) {
  CifarFiles files{.set = "cifar10",
                   .archive = "cifar-10-binary.tar.gz",
                   .subfolder = "cifar-10-batches-bin",
                   .names = {"test_batch.bin"},
                   .label_bytes = 1,
                   .label = 0,
                   .classes = 10};
  if (split == Split::train)
    files.names = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"};
  return load_cifar(folder, options, files, normalisation, on_error);
}

Loader cifar100(const std::filesystem::path& folder, const LoaderOptions& options, Split split, Cifar100Labels labels,
                const ColourNormalisation& normalisation, OnError on_error) {
  const bool fine = labels == Cifar100Labels::fine;
  return load_cifar(folder, options,
                    {.set = "cifar100",
                     .archive = "cifar-100-binary.tar.gz",
                     .subfolder = "cifar-100-binary",
                     .names = {split == Split::train ? "train.bin" : "test.bin"},
                     .label_bytes = 2,
                     .label = fine ? 1 : 0,
                     .classes = fine ? 100 : 20},
                    normalisation, on_error);
}

}  // namespace accelerate::data

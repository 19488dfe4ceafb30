// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/cifar.hpp"

#include <ATen/ops/empty.h>
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

constexpr int64_t cifar_side = 32;
constexpr int64_t cifar_pixels = 3 * cifar_side * cifar_side;

/// One record after another: labels, then red, green and blue pixels.
struct CifarFiles {
  std::string_view set;
  std::string_view archive;  // where they are published
  std::string_view subfolder;
  std::vector<std::string> names;
  int64_t label_bytes;
  int64_t label;  // which of them
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

int64_t count_images(const MappedFile& file, const CifarFiles& files) {
  const auto record = static_cast<uint64_t>(files.label_bytes + cifar_pixels);
  if (file.size() == 0 || file.size() % record != 0)
    base::fail(ErrorKind::data, {}, files.set,
               "{} has {} bytes: expected a multiple of {}, {} and 3x32x32 pixels an image", file.path().string(),
               file.size(), record, files.label_bytes == 1 ? "a label" : "2 labels");
  return static_cast<int64_t>(file.size() / record);
}

Loader load_cifar(const std::filesystem::path& folder, const LoaderOptions& options, const CifarFiles& files,
                  const ColourNormalisation& normalisation) {
  std::vector<std::unique_ptr<MappedFile>> parts;
  int64_t count = 0;
  for (const auto& path : find_cifar(folder, files)) {
    parts.push_back(std::make_unique<MappedFile>(path, files.set));
    count += count_images(*parts.back(), files);
  }
  const auto images = at::empty({count, 3, cifar_side, cifar_side}, at::TensorOptions().dtype(at::kByte));
  const auto labels = at::empty({count}, at::TensorOptions().dtype(at::kLong));
  auto* pixels_to = images.data_ptr<uint8_t>();
  auto* label_to = labels.data_ptr<int64_t>();
  int64_t first = 0;
  for (const auto& part : parts) {
    const int64_t here = count_images(*part, files);
    const auto* record = reinterpret_cast<const uint8_t*>(part->text().data());
    for (int64_t i = 0; i < here; ++i, record += files.label_bytes + cifar_pixels, pixels_to += cifar_pixels) {
      *label_to++ = record[files.label];
      std::memcpy(pixels_to, record + files.label_bytes, static_cast<size_t>(cifar_pixels));
    }
    check_labels(labels.slice(0, first, first + here), files.classes, part->path(), files.set);
    first += here;
  }
  return Loader(std::make_shared<ByteImages>(images, labels, normalisation.mean, normalisation.deviation), options);
}

}  // namespace

Loader cifar10(const std::filesystem::path& folder, const LoaderOptions& options, Split split,
               const ColourNormalisation& normalisation) {
  CifarFiles files{.set = "cifar10",
                   .archive = "cifar-10-binary.tar.gz",
                   .subfolder = "cifar-10-batches-bin",
                   .names = {"test_batch.bin"},
                   .label_bytes = 1,
                   .label = 0,
                   .classes = 10};
  if (split == Split::train)
    files.names = {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"};
  return load_cifar(folder, options, files, normalisation);
}

Loader cifar100(const std::filesystem::path& folder, const LoaderOptions& options, Split split, Cifar100Labels labels,
                const ColourNormalisation& normalisation) {
  const bool fine = labels == Cifar100Labels::fine;
  return load_cifar(folder, options,
                    {.set = "cifar100",
                     .archive = "cifar-100-binary.tar.gz",
                     .subfolder = "cifar-100-binary",
                     .names = {split == Split::train ? "train.bin" : "test.bin"},
                     .label_bytes = 2,
                     .label = fine ? 1 : 0,
                     .classes = fine ? 100 : 20},
                    normalisation);
}

}  // namespace accelerate::data

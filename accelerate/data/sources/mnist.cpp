// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/mnist.hpp"

#include <fmt/ranges.h>

#include <array>
#include <span>

#include "accelerate/data/sources/byte_images.hpp"
#include "accelerate/data/sources/idx.hpp"
#include "accelerate/data/sources/labels.hpp"

namespace accelerate::data {
namespace {

namespace fs = std::filesystem;
constexpr int64_t side = 28;
constexpr int64_t classes_of_set = 10;

std::array<std::string, 4> file_names() {
  return {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};
}

fs::path find(const fs::path& folder, const std::string& name, std::string_view set) {
  for (const auto& path : {folder / name, folder / (name + ".gz")})
    if (fs::exists(path)) return path;
  const auto names = file_names();
  base::fail(ErrorKind::io, {}, set,
             "{} {}; put {} there, gzipped (.gz) or not, or run ./run data {}, which downloads them", folder.string(),
             fs::is_directory(folder) ? fmt::format("has no {} and no {}.gz", name, name) : "is not a folder",
             fmt::join(names, ", "), set);
}

// Before anything is unpacked: a small file may unpack to gigabytes.
void check_shapes(const IdxFile& images, const IdxFile& labels, std::string_view set) {
  const auto& shape = images.shape();
  if (shape[1] != side || shape[2] != side)
    base::fail(ErrorKind::data, {}, set, "{} has images of {}x{}: expected 28x28", images.path().string(), shape[1],
               shape[2]);
  if (shape[0] != labels.shape()[0])
    base::fail(ErrorKind::data, {}, set, "{} has {} images: expected {}, the number of labels in {}",
               images.path().string(), shape[0], labels.shape()[0], labels.path().string());
  if (shape[0] == 0)
    base::fail(ErrorKind::data, {}, set, "{} has 0 images: expected at least 1", images.path().string());
}

Loader load(const fs::path& folder, const LoaderOptions& options, Split split, std::string_view set, float mean,
            float deviation) {
  const auto names = file_names();
  const size_t first = split == Split::train ? 0 : 2;
  const fs::path images_path = find(folder, names[first], set);
  const fs::path labels_path = find(folder, names[first + 1], set);
  IdxFile images(images_path, 3);
  IdxFile labels(labels_path, 1);
  check_shapes(images, labels, set);
  const at::Tensor classes = labels.read();
  check_labels(classes, classes_of_set, labels_path, set);
  return Loader(std::make_shared<ByteImages>(images.read().unsqueeze(1), classes.to(at::kLong), std::span(&mean, 1),
                                             std::span(&deviation, 1)),
                options);
}

}  // namespace

Loader mnist(const fs::path& folder, const LoaderOptions& options, Split split) {
  return load(folder, options, split, "mnist", 0.1307F, 0.3081F);
}

Loader fashion_mnist(const fs::path& folder, const LoaderOptions& options, Split split) {
  return load(folder, options, split, "fashion-mnist", 0.2860F, 0.3530F);
}

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/mnist.hpp"

#include <ATen/ops/index_select.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>

#include "accelerate/data/sources/byte_images.hpp"
#include "accelerate/data/sources/idx.hpp"
#include "accelerate/data/sources/labels.hpp"

namespace accelerate::data {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kMnistSide = 28;
constexpr int64_t kClassesOfSet = 10;

std::array<std::string, 4> file_names() {
  return {"train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"};
}

/// Returns "train-images.idx3-ubyte", the name in some copies of the data set.
std::string name_with_dot(std::string name) {
  name[name.find("-idx")] = '.';
  return name;
}

fs::path find(const fs::path& folder, const std::string& name, std::string_view set) {
  const std::string dotted = name_with_dot(name);
  // Kaggle's copy also has folders with these names.
  for (const auto& file : {name, name + ".gz", dotted, dotted + ".gz"})
    if (fs::exists(folder / file) && !fs::is_directory(folder / file)) return folder / file;
  const auto names = file_names();
  base::fail(ErrorKind::io, {}, set,
             "{} {}; put {} there, gzipped (.gz) or not, or run ./run data {}, which downloads them", folder.string(),
             fs::is_directory(folder) ? fmt::format("has no {} and no {}, gzipped (.gz) or not", name, dotted)
                                      : "is not a folder",
             fmt::join(names, ", "), set);
}

std::string other_count(const IdxFile& images, const IdxFile& labels) {
  return fmt::format("{} has {} images: expected {}, the number of labels in {}", images.path().string(),
                     images.shape()[0], labels.shape()[0], labels.path().string());
}

// Checks the headers before unpacking, because a small file may unpack to gigabytes.
void check_shapes(const IdxFile& images, const IdxFile& labels, std::string_view set, OnError on_error) {
  const auto& shape = images.shape();
  if (shape[1] != kMnistSide || shape[2] != kMnistSide)
    base::fail(ErrorKind::data, {}, set, "{} has images of {}x{}: expected 28x28", images.path().string(), shape[1],
               shape[2]);
  if (shape[0] != labels.shape()[0] && on_error == OnError::fail)
    base::fail(ErrorKind::data, {}, set, "{}", other_count(images, labels));
  if (shape[0] == 0)
    base::fail(ErrorKind::data, {}, set, "{} has 0 images: expected at least 1", images.path().string());
}

struct Digits {
  at::Tensor images;  // [N, 28, 28] uint8
  at::Tensor labels;  // [N] int64
};

/// Returns the samples that are intact in both files.
Digits whole_digits(IdxFile& images_file, IdxFile& labels_file, std::string_view set) {
  SkippedSamples left_out;
  const auto [both, all] = std::minmax(images_file.shape()[0], labels_file.shape()[0]);
  const auto images = images_file.read(both);
  auto labels = labels_file.read(both).to(at::kLong);
  const int64_t count = std::min(images.size(0), labels.size(0));
  labels = labels.narrow(0, 0, count);
  const auto places = with_labels(labels, kClassesOfSet, labels_file.path(), left_out);
  const std::string& cut = images_file.cut_off().empty() ? labels_file.cut_off() : images_file.cut_off();
  left_out.add(all - count, cut.empty() ? other_count(images_file, labels_file) : cut);
  left_out.tell(set, all);
  if (places.size(0) == count) return {images.narrow(0, 0, count), labels};
  return {images.index_select(0, places), labels.index_select(0, places)};
}

Loader load_split(const fs::path& folder, const LoaderOptions& options, Split split, std::string_view set, float mean,
                  float deviation, OnError on_error) {
  const auto names = file_names();
  const size_t first = split == Split::train ? 0 : 2;
  const fs::path images_path = find(folder, names[first], set);
  const fs::path labels_path = find(folder, names[first + 1], set);
  IdxFile images(images_path, 3, on_error);
  IdxFile labels(labels_path, 1, on_error);
  check_shapes(images, labels, set, on_error);
  const auto loader = [&](const at::Tensor& pixels, const at::Tensor& classes) {
    return Loader(
        std::make_shared<ByteImages>(pixels.unsqueeze(1), classes, std::span(&mean, 1), std::span(&deviation, 1)),
        options);
  };
  if (on_error == OnError::skip) {
    const auto digits = whole_digits(images, labels, set);
    return loader(digits.images, digits.labels);
  }
  const at::Tensor classes = labels.read();
  check_labels(classes, kClassesOfSet, labels_path, set);
  return loader(images.read(), classes.to(at::kLong));
}

}  // namespace

Loader mnist(const fs::path& folder, const LoaderOptions& options, Split split, OnError on_error) {
  return load_split(folder, options, split, "mnist", 0.1307F, 0.3081F, on_error);
}

Loader fashion_mnist(const fs::path& folder, const LoaderOptions& options, Split split, OnError on_error) {
  return load_split(folder, options, split, "fashion-mnist", 0.2860F, 0.3530F, on_error);
}

}  // namespace accelerate::data

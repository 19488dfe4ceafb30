// SPDX-License-Identifier: Apache-2.0
#include "tests/data/support.hpp"
//
#include <torch/nn/functional/padding.h>

#include "accelerate/data/transforms/random_crop.hpp"
#include "accelerate/data/transforms/transform.hpp"

using namespace sources;
using data::RandomCrop;

namespace {

data::TransformContext cropped_pass(int64_t samples, int64_t epoch = 0) {
  return {.pass = {.seed = 11, .epoch = epoch}, .indices = torch::arange(samples)};
}

at::Tensor padded(const at::Tensor& images, int64_t padding, double fill) {
  namespace F = torch::nn::functional;
  return F::pad(images, F::PadFuncOptions({padding, padding, padding, padding}).value(fill));
}

/// Counts how often each window of the padded `images` was cut out. CHECKs that each crop is a window.
std::map<std::pair<int64_t, int64_t>, int> windows(const at::Tensor& images, const at::Tensor& crops) {
  std::map<std::pair<int64_t, int64_t>, int> found;
  for (int64_t i = 0; i < images.size(0); ++i) {
    int matches = 0;
    for (int64_t y = 0; y + crops.size(-2) <= images.size(-2); ++y) {
      for (int64_t x = 0; x + crops.size(-1) <= images.size(-1); ++x) {
        const auto window = images[i].narrow(-2, y, crops.size(-2)).narrow(-1, x, crops.size(-1));
        if (!window.equal(crops[i])) continue;
        ++matches;
        ++found[{y, x}];
      }
    }
    CHECK(matches == 1);
  }
  return found;
}

}  // namespace

TEST_CASE("each crop is a window of its padded image, and all windows are equally likely") {
  const auto images = torch::arange(600 * 2 * 4 * 5, torch::kFloat).view({600, 2, 4, 5}) + 1;
  const RandomCrop crop({.size = {4, 5}, .padding = 1, .fill = -1});
  const auto crops = crop(images, cropped_pass(600));
  CHECK(crops.sizes() == images.sizes());
  const auto found = windows(padded(images, 1, -1), crops);
  CHECK(found.size() == 9);
  for (const auto& [place, count] : found) CHECK(std::abs(count - 67) < 35);
  CHECK(crop(images, cropped_pass(600)).equal(crops));
  CHECK_FALSE(crop(images, cropped_pass(600, 1)).equal(crops));
}

TEST_CASE("a crop may be smaller than the image, the whole image, or larger with padding") {
  const auto images = torch::arange(50 * 3 * 6 * 7).view({50, 3, 6, 7}) + 1;
  CHECK(windows(images, RandomCrop({.size = {5, 6}})(images, cropped_pass(50))).size() == 4);
  CHECK(windows(padded(images, 2, 0), RandomCrop({.size = {9, 11}, .padding = 2})(images, cropped_pass(50))).size() ==
        2);
  CHECK(RandomCrop({.size = {6, 7}})(images, cropped_pass(50)).equal(images));
  // Windows with padding only.
  const auto dot = torch::ones({40, 1, 1, 1});
  const auto crops = RandomCrop({.size = {1, 1}, .padding = 3})(dot, cropped_pass(40));
  CHECK(crops.sum().item<float>() < 10);
}

TEST_CASE("images of any dtype and layout are cropped") {
  const auto images = torch::randint(0, 255, {20, 3, 8, 8}, torch::kUInt8);
  const RandomCrop crop({.size = {8, 8}, .padding = 2, .fill = 7});
  const auto crops = crop(images, cropped_pass(20));
  CHECK((crops.dtype() == torch::kUInt8));
  CHECK(crop(images.to(torch::kDouble), cropped_pass(20)).equal(crops.to(torch::kDouble)));
  CHECK(crop(images.to(torch::kBFloat16), cropped_pass(20)).equal(crops.to(torch::kBFloat16)));
  CHECK(crop(images.contiguous(at::MemoryFormat::ChannelsLast), cropped_pass(20)).equal(crops));
  CHECK(crop(images.select(1, 0), cropped_pass(20)).equal(crops.select(1, 0)));
  CHECK(crop(images.narrow(0, 0, 0), cropped_pass(0)).sizes() == at::IntArrayRef{0, 3, 8, 8});
}

TEST_CASE("crops do not depend on batch size, world size and number of workers") {
  const auto images = torch::arange(10 * 16).view({10, 1, 4, 4}) + 1;
  const auto source =
      data::transform(data::memory_source(images, torch::arange(10)), RandomCrop({.size = {4, 4}, .padding = 2}));
  const auto all = source->read_in_pass(torch::arange(10), {.seed = 3, .epoch = 0}).data;
  for (int64_t world = 1; world <= 3; ++world) {
    for (int64_t rank = 0; rank < world; ++rank) {
      for (const int64_t workers : {0, 1, 3}) {
        (void)share_of(source, {.batch_size = 1 + world, .shuffle = true, .seed = 3, .num_workers = workers}, rank,
                       world, [&](const data::Batch& batch) {
                         CHECK(batch.data.equal(all.index_select(0, batch.target)));
                         return 0;
                       });
      }
    }
  }
}

TEST_CASE("RandomCrop refuses invalid sizes with both sizes") {
  CHECK_THROWS_WITH(RandomCrop({.size = {0, 4}}), "random_crop: size is 0x4, must be at least 1x1");
  CHECK_THROWS_WITH(RandomCrop({.size = {4, 4}, .padding = -1}), "random_crop: padding is -1, must be at least 0");
  const RandomCrop crop({.size = {8, 9}, .padding = 1});
  CHECK_THROWS_WITH((void)crop(torch::zeros({2, 3, 6, 6}), cropped_pass(2)),
                    "random_crop: the images are 6x6 and 1 pixels of padding, size is 8x9");
  CHECK_THROWS_WITH((void)crop(torch::zeros({2, 8, 8}), cropped_pass(3)),
                    "random_crop: the images are [2, 8, 8] on cpu, must be [3, ..., H, W] on the CPU");
  CHECK_THROWS_WITH((void)crop(torch::zeros({2, 8, 8}, torch::kMeta), cropped_pass(2)),
                    "random_crop: the images are [2, 8, 8] on meta, must be [2, ..., H, W] on the CPU");
}

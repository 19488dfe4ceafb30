// SPDX-License-Identifier: Apache-2.0
#include "tests/data/support.hpp"
//
#include "accelerate/data/transforms/normalize.hpp"
#include "accelerate/data/transforms/to_float.hpp"
#include "accelerate/data/transforms/transform.hpp"

using namespace sources;
using data::Normalize;

namespace {

const std::vector<double> kMean{0.4914, 0.4822, 0.4465};
const std::vector<double> kDeviation{0.2470, 0.2435, 0.2616};

}  // namespace

// Recorded from torchvision's operations in Python: image.sub(mean).div_(std), mean and std in the image's dtype.
TEST_CASE("Normalize is bit-equal to torchvision's") {
  const auto images = torch::arange(12, torch::kFloat).div(12).view({1, 3, 2, 2});
  const std::vector<float> floats{-0x1.fd4e26p+0F, -0x1.a6ef7cp+0F, -0x1.5090d2p+0F, -0x1.f46456p-1F,
                                  -0x1.390472p-1F, -0x1.139704p-2F, 0x1.2b6b92p-4F,  0x1.a94cc4p-2F,
                                  0x1.aee844p-1F,  0x1.2900cap+0F,  0x1.7a8d70p+0F,  0x1.cc1a1cp+0F};
  CHECK(Normalize(kMean, kDeviation)(images).equal(torch::tensor(floats).view({1, 3, 2, 2})));
  const std::vector<float> halves{-0x1.fd8p+0F, -0x1.a74p+0F, -0x1.508p+0F, -0x1.f48p-1F, -0x1.39p-1F, -0x1.13p-2F,
                                  0x1.2bcp-4F,  0x1.aap-2F,   0x1.ae4p-1F,  0x1.28cp+0F,  0x1.7a8p+0F, 0x1.cbcp+0F};
  const auto half = Normalize(kMean, kDeviation)(images.to(torch::kHalf));
  CHECK((half.dtype() == torch::kHalf));
  CHECK(half.to(torch::kFloat).equal(torch::tensor(halves).view({1, 3, 2, 2})));
}

TEST_CASE("Normalize accepts one value for all channels, and does not change its input") {
  const auto images = torch::rand({2, 3, 4, 4});
  const auto before = images.clone();
  CHECK(Normalize({0.5}, {0.25})(images).equal((images - 0.5F) / 0.25F));
  CHECK(images.equal(before));
  CHECK(Normalize(kMean, kDeviation)(torch::rand({0, 3, 4, 4})).sizes() == at::IntArrayRef{0, 3, 4, 4});
}

TEST_CASE("ToFloat is bit-equal to torchvision's ToTensor") {
  const auto bytes = torch::arange(0, 256, 51, torch::kUInt8);
  CHECK(data::ToFloat()(bytes).equal(
      torch::tensor({0.0F, 0x1.99999ap-3F, 0x1.99999ap-2F, 0x1.333334p-1F, 0x1.99999ap-1F, 1.0F})));
  const auto already = torch::rand(3, torch::kDouble);
  CHECK(data::ToFloat()(already).equal(already));
  CHECK_THROWS_WITH((void)data::ToFloat()(torch::arange(3)),
                    "to_float: the images are Long, must be Byte or of floating point");
}

TEST_CASE("a source of bytes is normalised batch by batch, on two ranks") {
  const auto bytes = torch::arange(5 * 3 * 2 * 2, torch::kUInt8).view({5, 3, 2, 2});
  const auto source =
      data::transform(data::memory_source(bytes, torch::arange(5)), data::ToFloat(), Normalize(kMean, kDeviation));
  const auto all = Normalize(kMean, kDeviation)(bytes.to(torch::kFloat).div(255));
  for (int64_t rank = 0; rank < 2; ++rank) {
    (void)share_of(source, {.batch_size = 2}, rank, 2, [&](const data::Batch& batch) {
      CHECK(batch.data.equal(all.index_select(0, batch.target)));
      return 0;
    });
  }
}

TEST_CASE("Normalize refuses invalid arguments and images with the values") {
  CHECK_THROWS_WITH(Normalize({0.5}, {0.5, 0.5}),
                    "normalize: mean has 1 values, std 2; both must have one for each channel");
  CHECK_THROWS_WITH(Normalize({}, {}), "normalize: mean has 0 values, std 0; both must have one for each channel");
  CHECK_THROWS_WITH(Normalize({0.5, 0.5}, {1.0, 0.0}),
                    "normalize: channel 1 has mean 0.5 and std 0; both must be finite, and std must not be 0");
  CHECK_THROWS_WITH(Normalize({0.5}, {1e-60}),
                    "normalize: channel 0 has mean 0.5 and std 1e-60; both must be finite, and std must not be 0");
  CHECK_THROWS_WITH(Normalize({std::nan("")}, {1.0}),
                    "normalize: channel 0 has mean nan and std 1; both must be finite, and std must not be 0");
  CHECK_THROWS_WITH((void)Normalize(kMean, kDeviation)(torch::zeros({2, 1, 28, 28})),
                    "normalize: the images are [2, 1, 28, 28], must be [..., 3, H, W] for 3 values of mean");
  CHECK_THROWS_WITH((void)Normalize({0.5}, {0.5})(torch::zeros({2, 28})),
                    "normalize: the images are [2, 28], must be [..., C, H, W] for 1 values of mean");
  CHECK_THROWS_WITH((void)Normalize(kMean, kDeviation)(torch::zeros({2, 3, 8, 8}, torch::kUInt8)),
                    "normalize: the images are Byte, must be of floating point; ToFloat converts them");
}

TEST_CASE("Normalize works on images on a device") {
  const auto images = torch::empty({2, 3, 4, 4}, torch::TensorOptions().device(torch::kMeta));
  CHECK(Normalize(kMean, kDeviation)(images).is_meta());
}

// SPDX-License-Identifier: Apache-2.0
#include "tests/data/support.hpp"
//
#include "accelerate/data/transforms/random_flip.hpp"
#include "accelerate/data/transforms/transform.hpp"

using namespace sources;
using data::RandomHorizontalFlip;

namespace {

data::TransformContext flipped_pass(int64_t samples, int64_t epoch = 0) {
  return {.pass = {.seed = 11, .epoch = epoch}, .indices = torch::arange(samples)};
}

/// CHECKs that each image is unchanged or mirrored. Returns the number of mirrored images.
int mirrored(const at::Tensor& images, const at::Tensor& flipped) {
  int count = 0;
  for (int64_t i = 0; i < images.size(0); ++i) {
    const bool other = flipped[i].equal(images[i].flip(-1));
    CHECK((other || flipped[i].equal(images[i])));
    count += other ? 1 : 0;
  }
  return count;
}

}  // namespace

TEST_CASE("each image is mirrored with probability p, and differently in another epoch") {
  const auto images = torch::arange(1000 * 6).view({1000, 1, 2, 3});
  const auto before = images.clone();
  const auto flipped = RandomHorizontalFlip()(images, flipped_pass(1000));
  CHECK(std::abs(mirrored(images, flipped) - 500) < 80);
  CHECK(std::abs(mirrored(images, RandomHorizontalFlip(0.1)(images, flipped_pass(1000))) - 100) < 50);
  CHECK(mirrored(images, RandomHorizontalFlip(0.0)(images, flipped_pass(1000))) == 0);
  CHECK(mirrored(images, RandomHorizontalFlip(1.0)(images, flipped_pass(1000))) == 1000);
  CHECK(RandomHorizontalFlip()(images, flipped_pass(1000)).equal(flipped));
  CHECK_FALSE(RandomHorizontalFlip()(images, flipped_pass(1000, 1)).equal(flipped));
  CHECK(images.equal(before));
  CHECK(RandomHorizontalFlip()(images.to(torch::kUInt8), flipped_pass(1000)).equal(flipped.to(torch::kUInt8)));
  CHECK(RandomHorizontalFlip()(images.narrow(0, 0, 0), flipped_pass(0)).size(0) == 0);
}

TEST_CASE("flips do not depend on batch size and world size") {
  const auto images = torch::arange(10 * 4).view({10, 2, 2});
  const auto source = data::transform(data::memory_source(images, torch::arange(10)), RandomHorizontalFlip());
  const auto all = source->read_in_pass(torch::arange(10), {.seed = 3, .epoch = 0}).data;
  CHECK_FALSE(all.equal(images));
  for (int64_t world = 1; world <= 3; ++world) {
    for (int64_t rank = 0; rank < world; ++rank) {
      (void)share_of(source, {.batch_size = 1 + world, .shuffle = true, .seed = 3}, rank, world,
                     [&](const data::Batch& batch) {
                       CHECK(batch.data.equal(all.index_select(0, batch.target)));
                       return 0;
                     });
    }
  }
}

TEST_CASE("RandomHorizontalFlip refuses invalid arguments and images with the values") {
  CHECK_THROWS_WITH(RandomHorizontalFlip(1.5), "random_horizontal_flip: p is 1.5, must be 0 to 1");
  CHECK_THROWS_WITH(RandomHorizontalFlip(-0.5), "random_horizontal_flip: p is -0.5, must be 0 to 1");
  CHECK_THROWS_WITH((void)RandomHorizontalFlip()(torch::zeros({2, 4}), flipped_pass(3)),
                    "random_horizontal_flip: the images are [2, 4], must be [3, ..., W]");
  CHECK_THROWS_WITH((void)RandomHorizontalFlip()(torch::zeros(3), flipped_pass(3)),
                    "random_horizontal_flip: the images are [3], must be [3, ..., W]");
}

// SPDX-License-Identifier: Apache-2.0
#include "tests/data/support.hpp"
//
#include "accelerate/data/combinators/repeat.hpp"
#include "accelerate/data/combinators/zip.hpp"
#include "accelerate/data/transforms/transform.hpp"

using namespace sources;

namespace {

/// Draws one number below 1000 per sample.
const auto draw = [](const at::Tensor& rows, const data::TransformContext& context) {
  Numbers drawn;
  for (int64_t i = 0; i < rows.size(0); ++i) drawn.push_back(context.random(i).below(1000));
  return index(drawn);
};
const auto add_one = [](const at::Tensor& rows) { return rows + 1; };

/// Maps each sample number to its random number in this epoch, on all ranks.
std::map<int64_t, int64_t> drawn_by(const data::SourcePtr<data::Batch>& source, int64_t world, int64_t batch_size,
                                    int64_t epoch, uint64_t seed = 5) {
  std::map<int64_t, int64_t> drawn;
  for (int64_t rank = 0; rank < world; ++rank) {
    data::LoaderOf loader(source, {.batch_size = batch_size, .shuffle = true, .seed = seed});
    loader.shard({.rank = rank, .world_size = world});
    loader.set_epoch(epoch);
    for (auto& batch : loader) {
      for (int64_t i = 0; i < batch.data.size(0); ++i) {
        const auto value = batch.data[i].item<int64_t>();
        const auto [known, added] = drawn.emplace(batch.target[i].item<int64_t>() / 10, value);
        CHECK((added || known->second == value));
      }
    }
  }
  return drawn;
}

}  // namespace

TEST_CASE("transforms apply in order to each batch's first tensor and leave the rest unchanged") {
  const auto changed = data::transform(numbers(5), add_one, [](const at::Tensor& rows) { return rows * 100; });
  CHECK(changed->size() == 5);
  const auto batch = changed->read(index({4, 0, 4}));
  CHECK(list(batch.data) == Numbers{500, 100, 500});
  CHECK(list(batch.target) == Numbers{40, 0, 40});
  CHECK_FALSE(changed->seeded());
  CHECK_THROWS_WITH((void)changed->read(index({5})), "transform: sample 5 is requested, there are 5 samples");
}

TEST_CASE("a member or a function can select another tensor") {
  const auto target = data::transform(numbers(5), &data::Batch::target, add_one);
  CHECK(list(target->read(index({2})).target) == Numbers{21});
  CHECK(list(target->read(index({2})).data) == Numbers{2});
  using Map = std::map<std::string, at::Tensor>;
  const auto map = data::memory_source(Map{{"a", torch::arange(3)}, {"b", torch::arange(3)}});
  const auto second = data::transform(
      map, [](Map& batch) -> at::Tensor& { return batch.at("b"); }, add_one);
  CHECK(list(second->read(index({2})).at("b")) == Numbers{3});
  CHECK(list(second->read(index({2})).at("a")) == Numbers{2});
}

TEST_CASE("the random numbers of a sample depend only on the seed, the epoch and its index") {
  const auto source = data::transform(numbers(40), draw);
  CHECK(source->seeded());
  const auto alone = drawn_by(source, 1, 1, 0);
  CHECK(alone.size() == 40);
  CHECK(drawn_by(source, 1, 7, 0) == alone);
  CHECK(drawn_by(source, 2, 4, 0) == alone);
  CHECK(drawn_by(source, 3, 4, 0) == alone);
  CHECK(drawn_by(source, 2, 4, 1) != alone);
  CHECK(drawn_by(source, 2, 4, 0, 6) != alone);
  std::set<int64_t> values;
  for (const auto& [sample, value] : alone) values.insert(value);
  CHECK(values.size() > 30);
}

TEST_CASE("a loader with a random transform is seeded, shuffled or not, so that prepare() sets rank 0's seed") {
  CHECK(data::LoaderOf(data::transform(numbers(4), draw)).shuffles());
  CHECK_FALSE(data::LoaderOf(data::transform(numbers(4), add_one)).shuffles());
  CHECK(data::transform(numbers(4), draw)->thread_safe());
  CHECK_FALSE(data::transform(std::make_shared<PassSource>(), add_one)->thread_safe());
}

TEST_CASE("random layers draw independently, in one transform() and in nested ones") {
  const auto add = [](const at::Tensor& rows, const data::TransformContext& context) {
    return rows + 1000 * draw(rows, context);
  };
  const auto drawn = [](const auto& source) {
    return list(source->read_in_pass(index({3}), {.seed = 5, .epoch = 2}).data)[0];
  };
  const auto first = drawn(data::transform(numbers(5), draw));
  const auto two = data::transform(numbers(5), draw, add);
  CHECK(drawn(two) % 1000 == first);
  CHECK(drawn(two) / 1000 != first);
  // The lower transform is then the second layer.
  const auto over = drawn(data::transform(data::transform(numbers(5), draw), add));
  CHECK(over / 1000 == first);
  CHECK(over % 1000 == drawn(two) / 1000);
}

TEST_CASE("a transform above repeat() draws anew for each repetition, one below draws once") {
  const auto numbers_of = [](const auto& source) {
    return list(source->read_in_pass(index({1, 6}), {.seed = 5, .epoch = 2}).data);
  };
  const auto above = numbers_of(data::transform(data::repeat(numbers(5), 2), draw));
  CHECK(above[0] != above[1]);
  const auto below = numbers_of(data::repeat(data::transform(numbers(5), draw), 2));
  CHECK(below[0] == below[1]);
}

TEST_CASE("an image and its mask in zip get the same draws") {
  const auto both = data::zip(data::transform(numbers(5), draw), data::transform(numbers(5, 50), draw));
  const auto [image, mask] = both->read_in_pass(index({4, 1}), {.seed = 5, .epoch = 2});
  CHECK(image.data.equal(mask.data));
}

TEST_CASE("draws equal Philox4x32-10 and have the expected frequencies") {
  // Random123's known answer for key 0 and counter 0.
  data::SampleRandom known({}, 0);
  for (const uint32_t word : {0x6627e8d5U, 0xe169c58dU, 0xbc57ac4cU, 0x9b00dbd8U}) {
    CHECK(known.uniform() == static_cast<double>(word) * 0x1p-32);
  }
  std::array<int, 10> counts{};
  for (int64_t sample = 0; sample < 10000; ++sample) {
    ++counts.at(static_cast<size_t>(data::SampleRandom({.seed = 1}, sample).below(10)));
  }
  for (const int count : counts) CHECK(std::abs(count - 1000) < 150);
  data::SampleRandom one({.seed = 3}, 7);
  CHECK(one.below(1) == 0);
}

TEST_CASE("a batch without a tensor cannot be transformed; an empty source has no batches") {
  const auto none = data::transform(data::memory_source(std::pair(torch::zeros(2), torch::zeros(2))), add_one);
  CHECK(none->read(index({})).first.size(0) == 0);
  struct Bare final : data::Source {
    [[nodiscard]] int64_t size() const override { return 1; }
    [[nodiscard]] data::Batch read(const at::Tensor&) const override { return {}; }
  };
  CHECK_THROWS_WITH((void)data::transform(std::make_shared<Bare>(), add_one)->read(index({0})),
                    "transform: the batch holds no tensor, so there is nothing to transform");
  CHECK(two_ranks(data::transform(numbers(0), draw)) == std::vector<std::vector<Numbers>>{{}, {}});
  CHECK_THROWS_WITH((void)data::transform(std::shared_ptr<const data::Source>(), add_one),
                    "transform: the source is a null pointer");
}

// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <algorithm>
#include <map>

#include "accelerate/data/combinators/shuffle_buffer.hpp"
#include "accelerate/data/stream_loader.hpp"

using namespace accelerate::data;
using Numbers = std::vector<int64_t>;

namespace {

StreamPtr<int64_t> plain_stream(int64_t n) {
  return make_stream(
      [n] {
        return [n, next = int64_t{0}]() mutable -> std::optional<int64_t> {
          return next < n ? std::optional(next++) : std::nullopt;
        };
      },
      n);
}

Numbers all_of(const StreamPtr<int64_t>& stream, const ReadContext& context = {}) {
  Numbers all;
  const auto read = stream->begin(context);
  while (const auto sample = read()) all.push_back(*sample);
  CHECK_FALSE(read());  // the stream stays at its end
  return all;
}

Numbers sorted(Numbers list) {
  std::sort(list.begin(), list.end());
  return list;
}

}  // namespace

TEST_CASE("a shuffle buffer returns every sample once, in an order of seed and epoch, within its size") {
  const auto shuffled = shuffle_buffer(plain_stream(200), 10);
  const auto first = all_of(shuffled, {.seed = 1});
  CHECK(sorted(first) == all_of(plain_stream(200)));
  CHECK(first != sorted(first));
  for (size_t i = 0; i < first.size(); ++i) CHECK(first[i] < static_cast<int64_t>(i) + 10);
  CHECK(all_of(shuffled, {.seed = 1}) == first);
  CHECK(all_of(shuffled, {.seed = 1, .epoch = 1}) != first);
  CHECK(all_of(shuffled, {.seed = 3}) != first);
  CHECK(shuffled->seeded());
  CHECK(shuffled->size() == 200);
  const auto twice = shuffle_buffer(shuffled, 10);
  CHECK(sorted(all_of(twice, {.seed = 1})) == sorted(first));
  CHECK(all_of(twice, {.seed = 1}) != first);
}

TEST_CASE("every order of a small stream is about equally likely") {
  std::map<Numbers, int> times;
  for (uint64_t seed = 0; seed < 6000; ++seed) ++times[all_of(shuffle_buffer(plain_stream(3), 3), {.seed = seed})];
  CHECK(times.size() == 6);
  for (const auto& [order, count] : times) {
    CHECK(count > 850);
    CHECK(count < 1150);
  }
}

TEST_CASE("a buffer of one keeps the order, a large one holds all samples, an empty stream stays empty") {
  CHECK(all_of(shuffle_buffer(plain_stream(5), 1), {.seed = 4}) == Numbers{0, 1, 2, 3, 4});
  CHECK(sorted(all_of(shuffle_buffer(plain_stream(5), 99))) == Numbers{0, 1, 2, 3, 4});
  CHECK(all_of(shuffle_buffer(plain_stream(0), 3)).empty());
  CHECK_THROWS_WITH((void)shuffle_buffer(plain_stream(5), 0), "shuffle_buffer: size is 0, must be at least 1");
}

TEST_CASE("an interrupted pass over a shuffled stream continues in the same order, on all ranks") {
  const auto walk = [](int64_t rank, const std::optional<accelerate::state::LoaderState>& from, int64_t most) {
    StreamLoader loader(shuffle_buffer(plain_stream(40), 7), {.batch_size = 2, .seed = 9});
    loader.shard({.rank = rank, .world_size = 2});
    if (from) loader.load_state(*from);
    Numbers seen;
    int64_t batches = 0;
    for (auto& batch : loader) {
      for (int64_t i = 0; i < batch.size(0); ++i) seen.push_back(batch[i].template item<int64_t>());
      if (++batches == most) break;
    }
    return std::pair(seen, loader.state());
  };
  Numbers both;
  for (const int64_t rank : {0, 1}) {
    const auto whole = walk(rank, {}, 99).first;
    const auto [begun, state] = walk(rank, {}, 4);
    auto seen = begun;
    const auto rest = walk(rank, state, 99).first;
    seen.insert(seen.end(), rest.begin(), rest.end());
    CHECK(seen == whole);
    both.insert(both.end(), whole.begin(), whole.end());
  }
  CHECK(sorted(both) == all_of(plain_stream(40)));
}

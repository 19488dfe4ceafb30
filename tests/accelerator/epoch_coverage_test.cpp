// SPDX-License-Identifier: Apache-2.0
// Random combinations of sources, orders and shardings: every epoch is complete.
#include "tests/testing.hpp"
//
#include <random>

#include "accelerate/data/stream_loader.hpp"
#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;
using Numbers = std::vector<int64_t>;
namespace data = accelerate::data;

namespace {

enum class Order { sequential, shuffled, subset, weighted, batch_sampler, ragged_batch_sampler, distributed };

struct Case {
  int64_t samples, batch_size;
  bool split, drop, sized;
  std::optional<bool> dispatch;
  int64_t workers;
  Order order;

  /// Samples per step of one rank's loader.
  [[nodiscard]] int64_t each(int64_t ranks) const { return split ? batch_size * ranks : batch_size; }
  [[nodiscard]] accelerate::AcceleratorOptions options() const {
    return {.split_batches = split, .dispatch_batches = dispatch};
  }
  [[nodiscard]] std::string text() const {
    return fmt::format("{} samples, batch {}, split {}, drop {}, sized {}, dispatch {}, workers {}, order {}", samples,
                       batch_size, split, drop, sized, dispatch ? (*dispatch ? "yes" : "no") : "-", workers,
                       static_cast<int>(order));
  }

  [[nodiscard]] auto indexed(int64_t ranks) const {
    data::LoaderOptions options{.batch_size = each(ranks), .drop_last = drop, .seed = 5, .num_workers = workers};
    const auto all = torch::arange(samples);
    switch (order) {
      case Order::sequential:
        break;
      case Order::shuffled:
        options.shuffle = true;
        break;
      case Order::subset:
        options.sampler = data::subset_sampler(all.slice(0, 0, samples, 2));
        break;
      case Order::weighted:
        options.sampler =
            data::weighted_sampler(torch::ones({samples + 1}).slice(0, 0, samples), samples / 2, /*replacement=*/false);
        break;
      case Order::distributed:
        options.sampler = data::distributed_sampler(samples);
        break;
      default:
        options.batch_size = 1;
        options.drop_last = false;
        options.batch_sampler = [n = samples, size = each(ranks), ragged = order == Order::ragged_batch_sampler](
                                    uint64_t, int64_t epoch) {
          data::IndexBatches batches;
          for (int64_t i = 0; i < n; batches.back().push_back(i++)) {
            const bool full = ragged ? (i + epoch) % 3 == 0 || (i + epoch) % 7 == 0 : i % size == 0;
            if (batches.empty() || full) batches.emplace_back();
          }
          return batches;
        };
    }
    return data::LoaderOf(data::map(data::memory_source(all, all), [](const data::Batch& batch) { return batch.data; }),
                          options);
  }
  [[nodiscard]] auto stream(int64_t ranks) const {
    const auto counting = data::make_stream(
        [n = samples] {
          return [n, next = int64_t{0}]() mutable -> std::optional<int64_t> {
            return next < n ? std::optional(next++) : std::nullopt;
          };
        },
        sized ? std::optional(samples) : std::nullopt);
    return data::StreamLoader(counting, {.batch_size = each(ranks), .drop_last = drop});
  }
  [[nodiscard]] auto foreign(int64_t ranks) const {
    std::vector<at::Tensor> batches;
    for (int64_t i = 0; i < samples; i += each(ranks))
      batches.push_back(torch::arange(i, std::min(samples, i + each(ranks))));
    return batches;
  }
};

/// Samples that a single rank reads in an epoch.
template <typename Loader>
Numbers in_order(Loader loader) {
  Numbers all;
  for (auto& batch : loader) {
    const auto mine = numbers(batch);
    all.insert(all.end(), mine.begin(), mine.end());
  }
  return all;
}

/// The result of gather_for_metrics over a pass of at most `most` batches; each rank checks the loader's figures.
template <typename Loader>
Numbers gathered_of_pass(Accelerator& accelerator, Loader& loader, int64_t most = 1'000'000, bool resumed = false) {
  Numbers all;
  int64_t batches = 0;
  bool last = false;
  std::optional<int64_t> reported_size;
  if constexpr (requires { loader.size(); }) reported_size = loader.size();
  if (most == 0) return all;
  for (auto position = loader.begin(); position != loader.end(); ++position) {
    CHECK_FALSE(last);
    last = position.info().last;
    CHECK(position.info().index == batches);
    const auto real = numbers(accelerator.gather_for_metrics(*position));
    all.insert(all.end(), real.begin(), real.end());
    if (++batches == most) return all;
  }
  CHECK(last == (batches > 0));
  // The number is of a whole pass.
  if (reported_size && resumed) CHECK(batches <= *reported_size);
  if (reported_size && !resumed) CHECK(batches == *reported_size);
  return all;
}

Case random_case(std::mt19937& random) {
  const auto pick = [&](int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random); };
  Case one{.samples = pick(1, 40),
           .batch_size = pick(1, 6),
           .split = pick(0, 3) == 0,
           .drop = pick(0, 4) == 0,
           .sized = pick(0, 1) == 0,
           .dispatch = {},
           .workers = pick(0, 4) == 0 ? 2 : 0,
           .order = static_cast<Order>(pick(0, 6))};
  if (const auto choice = pick(0, 2); choice > 0) one.dispatch = choice == 1;
  if (one.order == Order::ragged_batch_sampler) one.split = false;
  if (one.order == Order::ragged_batch_sampler || one.order == Order::batch_sampler) one.drop = false;
  // with several ranks it drops less than with one, as in PyTorch
  if (one.order == Order::distributed) one.drop = false;
  return one;
}

/// With strided sharding the ranks' samples of a step are in another order.
Numbers sorted(Numbers list) {
  std::sort(list.begin(), list.end());
  return list;
}

template <bool resumable, typename Make>
void check(const Case& one, const Make& make, std::mt19937& random, bool in_strides = false) {
  const int64_t ranks = 1 + static_cast<int64_t>(random() % 4);
  const int64_t others = 1 + static_cast<int64_t>(random() % 4);
  const auto stop = static_cast<int64_t>(random() % 4);
  std::vector<Numbers> expected;
  {
    auto alone = make(1);
    expected = {in_order(alone), in_order(alone)};
  }
  CAPTURE(one.text());
  CAPTURE(ranks);
  std::vector<Numbers> seen(2);
  Numbers first, rest;
  accelerate::state::LoaderState state;
  on_ranks(
      ranks,
      [&](Accelerator& accelerator) {
        auto loader = accelerator.prepare(make(ranks));
        for (size_t epoch = 0; epoch < 2; ++epoch) {
          auto all = gathered_of_pass(accelerator, loader);
          if (accelerator.is_main_process()) seen[epoch] = all;
        }
        auto again = accelerator.prepare(make(ranks));
        auto head = gathered_of_pass(accelerator, again, stop);
        auto tail_loader = accelerator.skip_first_batches(accelerator.prepare(make(ranks)), stop);
        auto tail = gathered_of_pass(accelerator, tail_loader);
        if (accelerator.is_main_process()) {
          first = head;
          rest = tail;
        }
        if constexpr (resumable) {
          if (accelerator.is_main_process()) state = again.state();
        }
      },
      one.options());
  for (size_t epoch = 0; epoch < 2; ++epoch) {
    auto whole = expected[epoch];
    if (one.drop) whole.resize(std::min(whole.size(), seen[epoch].size()));
    const int64_t left = static_cast<int64_t>(expected[epoch].size() - whole.size());
    CHECK(left < std::max<int64_t>(1, one.drop ? one.each(ranks) * (one.split ? 1 : ranks) : 1));
    if (in_strides) {
      CHECK(sorted(seen[epoch]) == sorted(whole));
    } else {
      CHECK(seen[epoch] == whole);
    }
  }
  auto both = first;
  both.insert(both.end(), rest.begin(), rest.end());
  if (!in_strides) CHECK(both == seen[0]);
  if constexpr (resumable) {
    if (one.drop || state.consumed == 0) return;
    Numbers after, next;
    on_ranks(
        others,
        [&](Accelerator& accelerator) {
          auto loader = accelerator.prepare(make(others));
          loader.load_state(state);
          auto left = gathered_of_pass(accelerator, loader, 1'000'000, /*resumed=*/true);
          auto whole = gathered_of_pass(accelerator, loader);
          if (!accelerator.is_main_process()) return;
          after = left;
          next = whole;
        },
        one.options());
    CAPTURE(others);
    first.insert(first.end(), after.begin(), after.end());
    CHECK(sorted(first) == sorted(expected[0]));
    CHECK(sorted(next) == sorted(expected[1]));
  }
}

}  // namespace

TEST_CASE("an epoch of any loader is gathered once and in order, skipped into, and resumed on other ranks") {
  std::mt19937 random(11);
  for (int i = 0; i < 60; ++i) {
    const Case one = random_case(random);
    const auto indexed = [&](int64_t ranks) { return one.indexed(ranks); };
    const auto stream = [&](int64_t ranks) { return one.stream(ranks); };
    const auto foreign = [&](int64_t ranks) { return one.foreign(ranks); };
    check</*resumable=*/true>(one, indexed, random, one.order == Order::distributed);
    check</*resumable=*/true>(one, stream, random);
    if (!one.drop) check</*resumable=*/false>(one, foreign, random);
  }
}

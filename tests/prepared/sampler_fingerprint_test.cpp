// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <set>

#include "accelerate/base/error.hpp"
#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;
using accelerate::data::IndexBatches;
using accelerate::data::Loader;

namespace {

constexpr const char* kOneOrderAdvice =
    "; they must be equal, or samples are repeated or missing. A sampler takes its order from the seed and the epoch "
    "that "
    "it "
    "is given and from nothing else; set_epoch() is for all ranks";

std::string rank_prefix(const Accelerator& accelerator) {
  return accelerate::base::prefix({.rank = accelerator.process_index(),
                                   .world_size = accelerator.num_processes(),
                                   .host = accelerate::base::host_name()});
}

/// Error text at the start of a pass, or "".
template <typename AnyLoader>
std::string told_at_begin(const AnyLoader& loader) {
  try {
    (void)loader.begin();
  } catch (const accelerate::Error& error) {
    CHECK(error.kind() == accelerate::ErrorKind::usage);
    return error.what();
  }
  return "";
}

/// On the last of `ranks` ranks, the order is shifted by one sample.
Loader rolled_on_last(const Accelerator& accelerator, bool with_batches = false) {
  const int64_t by = accelerator.process_index() + 1 == accelerator.num_processes() ? -1 : 0;
  accelerate::data::LoaderOptions options;
  if (with_batches) {
    options.batch_sampler = [by](uint64_t, int64_t) {
      return by == 0 ? IndexBatches{{0}, {1, 2, 3}} : IndexBatches{{0, 1}, {2, 3}};
    };
  } else {
    options.batch_size = 2;
    options.sampler = accelerate::data::make_sampler(4, [by](uint64_t, int64_t) { return torch::arange(4).roll(by); });
  }
  return accelerate::data::from_tensors(torch::arange(4), torch::arange(4), options);
}

}  // namespace

TEST_CASE("debug: a custom sampler with another order on one rank is reported on all, with both orders") {
  on_ranks(3,
           [](Accelerator& accelerator) {
             auto loader = accelerator.prepare(rolled_on_last(accelerator));
             CHECK(told_at_begin(loader) ==
                   rank_prefix(accelerator) +
                       "loader: rank 2's order of epoch 0 has 4 samples, checksum 8fe43395acf68425, rank 0's order of "
                       "epoch 0 has 4 samples, checksum 15df0b9df47166a5" +
                       kOneOrderAdvice);
           },
           {.debug = true});
}

TEST_CASE("debug: custom batches that start elsewhere on one rank are reported, although the order is equal") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             auto loader = accelerator.prepare(rolled_on_last(accelerator, /*with_batches=*/true));
             CHECK(told_at_begin(loader).starts_with(rank_prefix(accelerator) +
                                                     "loader: rank 1's order of epoch 0 has 4 samples, checksum "));
           },
           {.debug = true});
}

TEST_CASE("debug: set_epoch on one rank alone is reported") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             auto loader = accelerator.prepare(counting(4, 2));
             CHECK(told_at_begin(loader).empty());
             if (!accelerator.is_main_process()) loader.set_epoch(5);
             CHECK(told_at_begin(loader) ==
                   rank_prefix(accelerator) +
                       "loader: rank 1's order of epoch 5 has 4 samples, checksum 15df0b9df47166a5, rank 0's order of "
                       "epoch 1 has 4 samples, checksum 15df0b9df47166a5" +
                       kOneOrderAdvice);
           },
           {.debug = true});
}

TEST_CASE("debug: equal orders have the same batches as without debug: shuffled, sharded, resumed, dispatched") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             const auto gathered = [&](auto&& loader) {
               std::multiset<int64_t> all;
               for (auto& batch : loader)
                 for (const int64_t sample : numbers(accelerator.gather_for_metrics(batch.data))) all.insert(sample);
               return all;
             };
             const auto whole = up_to(11);
             const std::multiset<int64_t> each(whole.begin(), whole.end());
             auto shuffled = accelerator.prepare(counting(11, 2, {.shuffle = true}));
             CHECK(gathered(shuffled) == each);
             for ([[maybe_unused]] auto& batch : shuffled) break;
             shuffled.load_state(shuffled.state());
             CHECK(gathered(shuffled).size() == 7);
             auto own = accelerate::data::from_tensors(torch::arange(11), torch::arange(11),
                                                       {.batch_sampler = [](uint64_t, int64_t) {
                                                         return IndexBatches{{0, 1, 2}, {3}, {4, 5}, {6, 7, 8, 9, 10}};
                                                       }});
             CHECK(gathered(accelerator.prepare(own)) == each);
           },
           {.debug = true});
  on_ranks(2,
           [](Accelerator& accelerator) {
             auto loader = accelerator.prepare(rolled_on_last(accelerator));  // not used by rank 1
             CHECK(told_at_begin(loader).empty());
           },
           {.debug = true, .dispatch_batches = true});
}

TEST_CASE("orders are not compared without debug mode") {
  on_ranks(2, [](Accelerator& accelerator) {
    auto loader = accelerator.prepare(rolled_on_last(accelerator));
    CHECK(told_at_begin(loader).empty());
  });
}

// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <optional>
#include <ranges>
#include <utility>

#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;
using Numbers = std::vector<int64_t>;

namespace {

constexpr int64_t kLongSamples = 22, kShortSamples = 6;

Numbers repeated(int64_t samples, int64_t times) {
  Numbers all;
  for (int64_t i = 0; i < times; ++i) {
    for (const int64_t number : up_to(samples)) all.push_back(number);
  }
  return all;
}

void append(Numbers& all, const torch::Tensor& tensor) {
  for (const int64_t number : numbers(tensor)) all.push_back(number);
}

/// A foreign loader. The targets of all batches are views of one tensor.
std::vector<accelerate::data::Batch> list_of_batches(int64_t samples, int64_t batch_size) {
  const auto all = torch::arange(samples);
  std::vector<accelerate::data::Batch> batches;
  for (const auto& part : all.split(batch_size)) batches.push_back({part.to(torch::kDouble), part});
  return batches;
}

/// Results of gather_for_metrics() in one loop over the long loader, with the short one inside.
struct RendezvousResult {
  Numbers of_long, of_short, computed;
  std::vector<bool> steps;  // sync_gradients() of each micro-batch
};

void use(Accelerator& accelerator, const accelerate::data::Batch& a, const accelerate::data::Batch& b,
         RendezvousResult& all) {
  {
    auto window = accelerator.accumulate();
    all.steps.push_back(accelerator.sync_gradients());
  }
  append(all.of_long, accelerator.gather_for_metrics(a.target));
  append(all.of_short, accelerator.gather_for_metrics(b.target.view({-1, 1})));
  append(all.computed, accelerator.gather_for_metrics(a.data + 0));
}

/// The iterator begins before the loop and is incremented at the end of the body.
template <typename Long, typename Short>
void at_the_end(Accelerator& accelerator, const Long& longer, const Short& shorter, RendezvousResult& all) {
  auto it = shorter.begin();
  for (auto& a : longer) {
    if (it == shorter.end()) it = shorter.begin();
    use(accelerator, a, *it, all);
    ++it;
  }
}
/// The iterator begins before the loop, and is incremented at the beginning of a body.
template <typename Long, typename Short>
void at_the_beginning(Accelerator& accelerator, const Long& longer, const Short& shorter, RendezvousResult& all) {
  auto it = shorter.begin();
  bool first = true;
  for (auto& a : longer) {
    if (!std::exchange(first, false)) ++it;
    if (it == shorter.end()) it = shorter.begin();
    use(accelerator, a, *it, all);
  }
}
/// The iterator begins in the first body.
template <typename Long, typename Short>
void in_the_body(Accelerator& accelerator, const Long& longer, const Short& shorter, RendezvousResult& all) {
  std::optional<decltype(shorter.begin())> it;
  for (auto& a : longer) {
    if (!it || *it == shorter.end()) it.emplace(shorter.begin());
    use(accelerator, a, **it, all);
    ++*it;
  }
}
/// The batch is copied, and the iterator incremented before the copy is used.
template <typename Long, typename Short>
void copied(Accelerator& accelerator, const Long& longer, const Short& shorter, RendezvousResult& all) {
  auto it = shorter.begin();
  for (auto& a : longer) {
    if (it == shorter.end()) it = shorter.begin();
    const auto b = *it;
    ++it;
    use(accelerator, a, b, all);
  }
}

template <typename MakeLong, typename MakeShort>
void check_side_by_side(int64_t ranks, int64_t batch_size, const MakeLong& make_long, const MakeShort& make_short,
                        const accelerate::AcceleratorOptions& options = {}) {
  CAPTURE(ranks);
  CAPTURE(batch_size);
  const auto check = [&](const auto& walk) {
    on_ranks(
        ranks,
        [&](Accelerator& accelerator) {
          accelerator.set_gradient_accumulation_steps(4);
          auto [longer, shorter] =
              accelerator.prepare(make_long(kLongSamples, batch_size), make_short(kShortSamples, batch_size));
          for (int epoch = 0; epoch < 2; ++epoch) {
            RendezvousResult all;
            walk(accelerator, longer, shorter, all);
            CHECK(all.of_long == up_to(kLongSamples));
            CHECK(all.computed == up_to(kLongSamples));
            const auto steps = static_cast<int64_t>(all.steps.size());
            const int64_t of_short = (kShortSamples + ranks * batch_size - 1) / (ranks * batch_size);
            Numbers passes = repeated(kShortSamples, (steps + of_short - 1) / of_short);
            if (steps % of_short != 0) passes.resize(all.of_short.size());  // the loop ends before its last pass does
            CHECK(all.of_short == passes);
            for (int64_t i = 0; i < steps; ++i) {
              const bool synchronised = all.steps[static_cast<size_t>(i)];
              const bool expected = (i + 1) % 4 == 0 || i + 1 == steps;
              CHECK(synchronised == expected);
            }
          }
        },
        options);
  };
  check([](auto&... all) { at_the_end(all...); });
  check([](auto&... all) { at_the_beginning(all...); });
  check([](auto&... all) { copied(all...); });
  check([](auto&... all) { in_the_body(all...); });
}

}  // namespace

TEST_CASE("windows and metrics follow the loop, not the shorter loader that restarts beside it") {
  const auto ours = [](int64_t samples, int64_t batch_size) { return counting(samples, batch_size); };
  for (const int64_t ranks : {1, 2, 3, 4}) {
    for (const int64_t batch_size : {1, 2, 4}) check_side_by_side(ranks, batch_size, ours, ours);
  }
}

TEST_CASE("an iterator that the body replaces is beside the loop in all later passes too") {
  on_ranks(2, [](Accelerator& accelerator) {
    auto [longer, shorter] = accelerator.prepare(counting(22, 2), counting(10, 2));
    std::optional<decltype(shorter.begin())> it;
    Numbers all;
    for (auto& a : longer) {
      if (!it || *it == shorter.end()) {
        it.reset();
        it.emplace(shorter.begin());
      }
      append(all, accelerator.gather_for_metrics(a.data + 0));
      ++*it;
    }
    CHECK(all == up_to(22));
  });
}

TEST_CASE("an iterator that starts in the first body is beside the loop, a pass of one body is nested") {
  on_ranks(2, [](Accelerator& accelerator) {
    auto [longer, shorter] = accelerator.prepare(counting(22, 2), counting(3, 2));
    Numbers all, evaluated;
    for (auto& a : longer) {
      auto it = shorter.begin();  // its only batch is the last one, with one row of padding
      append(all, accelerator.gather_for_metrics(a.data + 0 * it->data.sum()));
      for (auto& batch : shorter) append(evaluated, accelerator.gather_for_metrics(batch.data * 1));
    }
    CHECK(all == up_to(22));
    CHECK(evaluated == repeated(3, 6));
  });
}

TEST_CASE("foreign loaders can run side by side, and dispatched loaders too") {
  const auto ours = [](int64_t samples, int64_t batch_size) { return counting(samples, batch_size); };
  for (const int64_t ranks : {1, 2, 3}) {
    check_side_by_side(ranks, 2, list_of_batches, list_of_batches);
    check_side_by_side(ranks, 2, ours, list_of_batches);
  }
  check_side_by_side(2, 2, list_of_batches, ours, {.dispatch_batches = true});
}

TEST_CASE("an evaluation within a loop with a loader beside it counts its own samples") {
  for (const int64_t ranks : {1, 2, 3}) {
    on_ranks(ranks, [&](Accelerator& accelerator) {
      auto [longer, shorter, third, held_out] =
          accelerator.prepare(counting(kLongSamples, 2), counting(kShortSamples, 2), counting(7, 2), counting(5, 2));
      auto it = shorter.begin();
      auto other = third.begin();
      Numbers seen;
      for (auto& a : longer) {
        if (it == shorter.end()) it = shorter.begin();
        if (other == third.end()) other = third.begin();
        Numbers evaluated;
        for (auto& batch : held_out) append(evaluated, accelerator.gather_for_metrics(batch.data * 1));
        CHECK(evaluated == up_to(5));
        for (auto& batch : held_out | std::views::take(1)) CHECK(batch.data.size(0) <= 2);
        append(seen, accelerator.gather_for_metrics(a.data * 1 + 0 * it->data.sum() + 0 * other->data.sum()));
        ++it;
        ++other;
      }
      CHECK(seen == up_to(kLongSamples));
    });
  }
}

TEST_CASE("an evaluation before the first use of an explicit iterator counts its own samples") {
  on_ranks(2, [](Accelerator& accelerator) {
    auto [longer, held_out] = accelerator.prepare(counting(kLongSamples, 2), counting(5, 2));
    Numbers seen;
    for (auto it = longer.begin(); it != longer.end(); ++it) {
      Numbers evaluated;
      for (auto& batch : held_out) append(evaluated, accelerator.gather_for_metrics(batch.data * 1));
      CHECK(evaluated == up_to(5));
      append(seen, accelerator.gather_for_metrics(it->data * 1));
    }
    CHECK(seen == up_to(kLongSamples));
  });
}

TEST_CASE("a loop with an early break, and an open iterator, do not affect the ends of later loops") {
  on_ranks(2, [](Accelerator& accelerator) {
    auto [longer, shorter] = accelerator.prepare(counting(kLongSamples, 2), counting(kShortSamples, 2));
    auto open = shorter.begin();
    (void)*open;
    for (auto& batch : longer) {
      if (batch.data.size(0) > 0) break;
    }
    for (int epoch = 0; epoch < 2; ++epoch) {
      Numbers seen;
      for (auto& a : longer) append(seen, accelerator.gather_for_metrics(a.data * 1));
      CHECK(seen == up_to(kLongSamples));
    }
  });
}

TEST_CASE("predictions lose padding like their targets, and each batch's tensors follow their own loop") {
  on_ranks(2, [](Accelerator& accelerator) {
    auto [longer, shorter] = accelerator.prepare(counting(kLongSamples, 2), counting(kShortSamples, 2));
    auto it = shorter.begin();
    Numbers of_long, of_short, predicted;
    for (auto& a : longer) {
      if (it == shorter.end()) it = shorter.begin();
      const auto both = accelerator.gather_for_metrics(std::pair(a.target, it->target));
      append(of_long, both.first);
      append(of_short, both.second);
      append(predicted, accelerator.gather_for_metrics(std::pair(it->data * 1, it->target)).first);
      ++it;
    }
    CHECK(of_long == up_to(kLongSamples));
    CHECK(of_short == repeated(kShortSamples, 3));
    CHECK(predicted == repeated(kShortSamples, 3));
  });
}

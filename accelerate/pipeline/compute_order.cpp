// SPDX-License-Identifier: Apache-2.0
#include "accelerate/pipeline/compute_order.hpp"

#include <algorithm>

namespace accelerate::pipeline {
namespace {

/// Forwards and backwards of one rank, each in the order in which the rank executes them.
struct Sequences {
  std::vector<Action> forwards{};
  std::vector<Action> backwards{};
};

/// Sizes of the rounds of the interleaved schedule. Every round except a single one has at least one micro-batch per
/// rank, so that the first stage's second pass never waits for the last stage's first pass.
std::vector<int64_t> round_sizes(const Plan& sizes) {
  const int64_t rounds = std::max<int64_t>(1, sizes.micro_batches / sizes.ranks);
  std::vector<int64_t> result;
  for (int64_t round = 0; round < rounds; ++round) {
    result.push_back(sizes.micro_batches / rounds + (round < sizes.micro_batches % rounds ? 1 : 0));
  }
  return result;
}

/// Each round runs its micro-batches through one local stage after the other.
Sequences in_rounds(int64_t rank, const Plan& sizes, const std::vector<int64_t>& rounds) {
  Sequences sequences;
  int64_t first = 0;
  for (const int64_t size : rounds) {
    for (int64_t pass = 0; pass < sizes.stages_per_rank; ++pass) {
      for (int64_t i = first; i < first + size; ++i) {
        const int64_t last = sizes.stages_per_rank - 1;
        sequences.forwards.push_back(
            {.kind = ActionKind::forward, .rank = rank, .stage = pass * sizes.ranks + rank, .micro_batch = i});
        sequences.backwards.push_back({.kind = ActionKind::backward,
                                       .rank = rank,
                                       .stage = (last - pass) * sizes.ranks + rank,
                                       .micro_batch = i});
      }
    }
    first += size;
  }
  return sequences;
}

/// `warm_up` forwards, then forwards and backwards in turn, then the remaining backwards.
std::vector<Action> alternate(const Sequences& sequences, int64_t warm_up) {
  const auto all = static_cast<int64_t>(sequences.forwards.size());
  warm_up = std::min(warm_up, all);
  std::vector<Action> order;
  for (int64_t i = 0; i < all + warm_up; ++i) {
    if (i < all) order.push_back(sequences.forwards[static_cast<size_t>(i)]);
    if (i >= warm_up) order.push_back(sequences.backwards[static_cast<size_t>(i - warm_up)]);
  }
  return order;
}

}  // namespace

std::vector<Action> compute_order(Schedule schedule, int64_t rank, const Plan& sizes) {
  const int64_t later_ranks = sizes.ranks - 1 - rank;
  switch (schedule) {
    case Schedule::gpipe:
      break;
    case Schedule::one_forward_one_backward:
      return alternate(in_rounds(rank, sizes, {sizes.micro_batches}), later_ranks);
    case Schedule::interleaved: {
      const auto rounds = round_sizes(sizes);
      const int64_t warm_up = (sizes.stages_per_rank - 1) * rounds.front() + 2 * later_ranks;
      return alternate(in_rounds(rank, sizes, rounds), warm_up);
    }
  }
  const Sequences sequences = in_rounds(rank, sizes, {sizes.micro_batches});
  return alternate(sequences, static_cast<int64_t>(sequences.forwards.size()));
}

}  // namespace accelerate::pipeline

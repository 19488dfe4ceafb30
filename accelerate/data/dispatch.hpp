// SPDX-License-Identifier: Apache-2.0
// Divides the batches that one rank reads into rounds of one batch per rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/data/batch_sharding.hpp"
#include "accelerate/data/split.hpp"
#include "accelerate/tree/rows.hpp"

namespace accelerate::data {

struct DispatchOptions {
  int64_t world_size = 1;
  /// If true, each batch is cut into one part per rank. If false, a round is world_size batches.
  bool split_batches = false;
  /// Drops a last round with fewer than world_size batches.
  bool drop_last = false;
};

/// Number of rounds for this number of batches.
[[nodiscard]] inline int64_t rounds_of(int64_t batches, const DispatchOptions& options) {
  if (options.split_batches) return batches;
  return (batches + (options.drop_last ? 0 : options.world_size - 1)) / options.world_size;
}

/// Batches of all ranks for one step.
template <typename Batch>
struct Round {
  std::vector<Batch> batches;  ///< [world_size], in rank order
  /// Number of samples without padding; they are in rank order. -1 for batches without rows.
  int64_t samples = -1;
  /// Number of the stream's batches up to the end of this round.
  int64_t read = 0;
};

/// Receives batches as they are read and returns rounds.
///
/// An incomplete last round is re-sharded as in Accelerate's dispatcher: its m samples are divided evenly among the
/// ranks, ceil(m / world_size) each, padded from the front of the first round, so that no rank is without a sample. A
/// part without rows (a number, a tensor without dimensions) is then taken from the batch of the first sample. If the
/// batches of the round differ, have no rows or cannot be joined (see tree::join_rows), the batches of the first round
/// pad it.
template <typename Batch>
class BatchDispatcher {
 public:
  /// \throws Error (usage) for a world_size below 1.
  explicit BatchDispatcher(const DispatchOptions& options, const RankContext& place = {})
      : options_(options), place_(place) {
    (void)shard_batches(0, {.world_size = options.world_size}, place);  // validates world_size
  }

  /// Sets the batches of the first round, for a pass that skips it.
  void pad_from(std::vector<Batch> front) { front_ = std::move(front); }
  /// Number of batches per round.
  [[nodiscard]] int64_t per_round() const { return options_.split_batches ? 1 : options_.world_size; }
  /// True if finish() will pad its round.
  [[nodiscard]] bool needs_padding() const {
    if (round_.empty()) return false;
    if (options_.split_batches) return samples_of(round_) % options_.world_size != 0;
    return !options_.drop_last && static_cast<int64_t>(round_.size()) < options_.world_size;
  }

  /// Adds the stream's next batch. Returns the previous round if it is complete.
  std::optional<Round<Batch>> feed(Batch batch) {
    std::optional<Round<Batch>> whole;
    if (static_cast<int64_t>(round_.size()) == per_round()) whole = take_whole();
    round_.push_back(std::move(batch));
    ++read_;
    return whole;
  }

  /// Ends the stream. Returns the last round.
  std::optional<Round<Batch>> finish() {
    if (round_.empty()) return std::nullopt;
    const bool whole = static_cast<int64_t>(round_.size()) == per_round();
    if (!whole && options_.drop_last) return std::nullopt;
    if (whole && !options_.split_batches && tree::rows(round_.front()) == tree::rows(round_.back())) {
      return pad_with_batches();  // the round is complete
    }
    if (auto shared = divide_round(round_, /*last=*/true)) return shared;
    if (options_.split_batches) fail_unsplit();
    return pad_with_batches();
  }

 private:
  std::optional<Round<Batch>> take_whole() {
    auto batches = std::exchange(round_, {});
    if (front_.empty()) {
      front_ = batches;
      // User code may modify rank 0's batch.
      if (!options_.split_batches) front_.front() = copy_of(front_.front());
    }
    if (!options_.split_batches) return Round<Batch>{batches, samples_of(batches), read_};
    auto cut = divide_round(batches, /*last=*/false);
    if (!cut) {
      round_ = std::move(batches);
      fail_unsplit();
    }
    return cut;
  }

  /// Sum of the rows; -1 if a batch has none.
  static int64_t samples_of(const std::vector<Batch>& batches) {
    int64_t samples = 0;
    for (const Batch& batch : batches) {
      const auto rows = tree::rows(batch);
      if (!rows) return -1;
      samples += *rows;
    }
    return samples;
  }

  /// Divides the samples of `batches` evenly among the ranks. Returns nothing if their rows cannot be joined.
  std::optional<Round<Batch>> divide_round(const std::vector<Batch>& batches, bool last) const {
    const int64_t ranks = options_.world_size;
    const int64_t samples = samples_of(batches);
    const int64_t each = tree::rows(batches.front()).value_or(0);
    if (samples < 1 || (!last && samples % ranks != 0)) return std::nullopt;
    for (size_t i = 1; i < batches.size(); ++i) {
      const int64_t rows = *tree::rows(batches[i]);
      if (rows < 1 || rows > each || (rows < each && i + 1 < batches.size())) return std::nullopt;
    }
    const std::vector<Batch>& front = front_.empty() ? batches : front_;
    const int64_t pool = samples_of(front);
    const int64_t rows_per_rank = (samples + ranks - 1) / ranks;
    if (samples % ranks != 0 && pool < 1) return std::nullopt;
    Round<Batch> round{{}, samples, read_};
    for (int64_t first = 0; first < ranks * rows_per_rank; first += rows_per_rank) {
      const int64_t real = std::clamp<int64_t>(samples - first, 0, rows_per_rank);
      std::vector<tree::RowPiece<Batch>> pieces;
      append_rows<Batch>(pieces, batches, first, real);
      append_padding<Batch>(
          pieces, {.padding_first = first + real - samples, .padding_rows = rows_per_rank - real, .pool = pool}, front);
      auto joined = tree::join_rows(batches.back(), pieces);
      if (!joined) return std::nullopt;
      round.batches.push_back(std::move(*joined));
    }
    return round;
  }

  Round<Batch> pad_with_batches() const {
    Round<Batch> round{round_, samples_of(round_), read_};
    const auto& front = front_.empty() ? round_ : front_;
    for (size_t i = 0; static_cast<int64_t>(round.batches.size()) < options_.world_size; ++i) {
      round.batches.push_back(front[i % front.size()]);
    }
    return round;
  }

  [[noreturn]] void fail_unsplit() const {
    const int64_t rows = tree::rows(round_.back()).value_or(0);
    if (rows > 0 && rows % options_.world_size == 0) fail_uncut(read_ - 1, rows, options_.world_size, place_);
    base::fail(
        ErrorKind::usage, place_, "loader",
        "split_batches: batch {} has {} rows, must be a round multiple of the {} ranks, all of them tensors' first "
        "dimension",
        read_ - 1, rows, options_.world_size);
  }

  DispatchOptions options_;
  RankContext place_;
  std::vector<Batch> round_;
  std::vector<Batch> front_;
  int64_t read_ = 0;
};

}  // namespace accelerate::data

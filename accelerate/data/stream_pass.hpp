// SPDX-License-Identifier: Apache-2.0
// One pass over a stream: this rank's part of every window of world_size batches.
#pragma once

#include <ATen/ops/tensor.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "accelerate/data/batch_sharding.hpp"
#include "accelerate/data/shard.hpp"
#include "accelerate/data/stream.hpp"
#include "accelerate/data/stream_core.hpp"
#include "accelerate/data/workers.hpp"
#include "accelerate/state/batch_info.hpp"

namespace accelerate::data {

/// One pass of one rank. Every rank reads the whole stream and keeps its samples. Samples are read one window ahead, so
/// that the end is known at the last batch.
template <typename AnySample>
class StreamPass {
 public:
  StreamPass(const StreamOf<AnySample>& stream, const StreamCore::Beginning& beginning)
      : reader_(stream.begin(beginning.context)),
        shard_(beginning.shard),
        round_(shard_.world_size * shard_.batch_size),
        origin_(beginning.origin),
        consumed_(beginning.consumed) {}

  /// This rank's samples of the next window, or nothing at the end.
  std::optional<std::vector<AnySample>> next() {
    if (!std::exchange(started_, true)) start();
    if (!has_batch(ahead_)) {
      info_.last = false;
      if (failure_) fail();
      return std::nullopt;
    }
    StreamWindow window = std::exchange(ahead_, {});
    first_ = handed_out_ + shard_.rank * shard_.batch_size;
    real_ = window.mine.size();
    handed_out_ += window.samples;
    const bool whole = window.samples == round_;
    if (whole) ahead_ = read_window();
    ++info_.index;
    info_.last = !has_batch(ahead_) && !failure_;
    if (info_.last) info_.remainder = plan().remainder();
    if (!whole) fill(window.mine);
    return std::move(window.mine);
  }

  [[nodiscard]] const state::BatchInfo& info() const { return info_; }
  /// Number of samples from the start of the stream that the ranks have received.
  [[nodiscard]] int64_t delivered() const { return handed_out_; }
  /// Number of samples from the start of the stream that were read.
  [[nodiscard]] int64_t read() const { return read_; }
  /// Numbers in the stream of the samples that next() returned last.
  [[nodiscard]] at::Tensor numbers() const {
    std::vector<int64_t> numbers(real_);
    std::iota(numbers.begin(), numbers.end(), first_);
    for (int64_t i = 0; i < filling_.padding_rows; ++i) numbers.push_back(origin_ + front_place(i));
    return at::tensor(numbers, at::kLong);
  }
  /// True if no rank receives another batch.
  [[nodiscard]] bool complete() const {
    return !failure_ && (ahead_.samples == 0 || (shard_.drop_last && ahead_.samples < round_));
  }

 private:
  struct StreamWindow {
    std::vector<AnySample> mine{};
    int64_t samples = 0;
  };

  [[nodiscard]] ShardPlan plan() const { return {read_ - origin_, shard_}; }

  [[nodiscard]] bool has_batch(const StreamWindow& window) const {
    if (window.samples == round_) return true;
    if (window.samples == 0 || shard_.drop_last) return false;
    return shard_.even_batches || shard_.rank * shard_.batch_size < window.samples;
  }

  /// Runs at the first batch, on the thread that reads it: a worker's read has the timeout and its WorkerInfo.
  void start() {
    pass_over();
    for (int64_t left = consumed_; left > 0 && !ended_; left -= round_) (void)read_window();
    handed_out_ = read_;
    ahead_ = read_window();
  }

  /// Skips the samples before the origin.
  void pass_over() {
    try {
      while (read_ < origin_ && !ended_) {
        ended_ = !read_sample(read_);
        if (!ended_) ++read_;
      }
    } catch (...) {
      failed_to_read(read_);
    }
  }

  std::optional<AnySample> read_sample(int64_t number) {
    const SampleNamed named(number);
    return reader_();
  }

  void failed_to_read(int64_t number) {
    failure_ = std::current_exception();
    failed_at_ = number;
    ended_ = true;
  }

  /// Logs the sample once, even if further samples are requested.
  [[noreturn]] void fail() {
    if (const auto number = std::exchange(failed_at_, std::nullopt)) log_failed_sample("stream", *number, failure_);
    std::rethrow_exception(failure_);
  }

  StreamWindow read_window() {
    StreamWindow window;
    if (ended_) return window;
    const bool first = read_ == origin_;
    const int64_t begin = shard_.rank * shard_.batch_size;
    try {
      for (; window.samples < round_; ++window.samples) {
        auto sample = read_sample(read_ + window.samples);
        if (!sample) break;
        if (first && shard_.even_batches) front_.push_back(copy_of(*sample));
        const bool is_mine = begin <= window.samples && window.samples < begin + shard_.batch_size;
        if (is_mine) window.mine.push_back(std::move(*sample));
      }
    } catch (...) {
      failed_to_read(read_ + window.samples);
      return {};
    }
    ended_ = window.samples < round_;
    read_ += window.samples;
    return window;
  }

  /// Pads this rank's samples of the tail to the full batch size from the front of the stream.
  void fill(std::vector<AnySample>& mine) {
    const ShardPlan whole = plan();
    filling_ = whole.batch(whole.size() - 1);
    for (int64_t i = 0; i < filling_.padding_rows; ++i) mine.push_back(front_[static_cast<size_t>(front_place(i))]);
  }
  [[nodiscard]] int64_t front_place(int64_t i) const { return (filling_.padding_first + i) % filling_.pool; }

  typename StreamOf<AnySample>::Reader reader_;
  ShardOptions shard_;
  int64_t round_;  // samples of a window
  int64_t origin_;
  int64_t consumed_;
  int64_t read_ = 0;
  int64_t handed_out_ = 0;
  int64_t first_ = 0;  // number of this rank's first sample in the last window
  size_t real_ = 0;    // number of this rank's samples in the last window, without padding
  BatchRange filling_{};
  bool started_ = false;
  bool ended_ = false;
  std::exception_ptr failure_;
  std::optional<int64_t> failed_at_;  // sample of the failure, until it is logged
  std::vector<AnySample> front_;
  StreamWindow ahead_;
  state::BatchInfo info_{};
};

/// A batch of a pass, with the position of the pass.
template <typename AnyBatch>
struct StreamBatch {
  std::optional<AnyBatch> batch{};  // unset at the end and after a failure
  std::exception_ptr failure{};     // set if the read failed
  state::BatchInfo info{};
  int64_t samples = 0;
  int64_t delivered = 0;
  int64_t read = 0;
  bool complete = false;
};

/// A pass that one thread collates.
template <typename AnySample, typename Collate, typename AnyBatch>
class CollatedStream {
 public:
  CollatedStream(const StreamOf<AnySample>& stream, const StreamCore::Beginning& beginning, const Collate& collate)
      : pass_(stream, beginning), collate_(collate) {}

  StreamBatch<AnyBatch> next() {
    StreamBatch<AnyBatch> coming;
    try {
      if (const auto samples = pass_.next()) {
        coming.samples = static_cast<int64_t>(samples->size());
        coming.batch.emplace(collated(*samples));
      }
    } catch (...) {
      coming.failure = std::current_exception();
    }
    coming.info = pass_.info();
    coming.delivered = pass_.delivered();
    coming.read = pass_.read();
    coming.complete = pass_.complete();
    return coming;
  }

 private:
  AnyBatch collated(const std::vector<AnySample>& samples) try { return collate_(samples); } catch (...) {
    log_failed_read(pass_.info().index, pass_.numbers(), std::current_exception());
    throw;
  }

  StreamPass<AnySample> pass_;
  Collate collate_;
};

}  // namespace accelerate::data

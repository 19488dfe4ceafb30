// SPDX-License-Identifier: Apache-2.0
// Losses that are sums, divided by what they sum over: in the whole accumulation window, on all ranks.
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/base/error.hpp"

namespace accelerate::prepared {

struct Shared;

/// What a loss is the sum over, in this micro-batch on this rank: one of the two.
struct LossCount {
  std::optional<int64_t> samples{};
  std::optional<int64_t> tokens{};
};

enum class LossUnit { none, means, samples, tokens };

/// What the losses of one accumulation window sum over, on this rank.
///
/// Within a window several sums in one micro-batch, or sums beside means, would leave open what is divided by what:
/// they are refused.
class WindowCount {
 public:
  WindowCount() = default;
  /// Where another run stood, between two micro-batches.
  WindowCount(LossUnit unit, int64_t total, int64_t undivided) : unit_(unit), total_(total), undivided_(undivided) {}
  void begin_micro_batch(bool of_new_window, bool of_several);
  void end_micro_batch() { strict_ = false; }

  /// Throws Error (usage) for a count that is none, or does not fit the window's others.
  void add(const LossCount& count, const Place& place);
  /// A loss that is a mean. Throws Error (usage) in a window of sums.
  void add_mean(const Place& place) { take(LossUnit::means, place); }

  [[nodiscard]] LossUnit unit() const { return unit_; }
  [[nodiscard]] int64_t total() const { return total_; }
  /// Losses whose gradients are sums still.
  [[nodiscard]] int64_t undivided() const { return undivided_; }
  void divided() { total_ = undivided_ = 0; }

 private:
  void take(LossUnit unit, const Place& place);

  LossUnit unit_ = LossUnit::none;
  int64_t total_ = 0;
  int64_t undivided_ = 0;
  bool strict_ = false;   // in a micro-batch of a window of several
  bool counted_ = false;  // a sum in this micro-batch
};

/// What backward() multiplies a loss by that is a sum: 1 within a window; at its end ranks / (count of all ranks), by
/// which it has then also multiplied the gradients that the window had gathered. Collective at the end of a window
/// only.
double weight_of_sum(Shared& shared, const LossCount& count);
/// The same for a loss that is a mean: 1/k, in a short last window 1/m.
double weight_of_mean(Shared& shared);
/// To be called before an optimizer steps. Throws Error (usage) where it would step on sums.
void check_divided(const Shared& shared);

}  // namespace accelerate::prepared

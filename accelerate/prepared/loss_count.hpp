// SPDX-License-Identifier: Apache-2.0
// Losses that are sums. They are divided by the count of the whole accumulation window on all ranks.
#pragma once

#include <cstdint>
#include <optional>

#include "accelerate/base/error.hpp"

namespace accelerate::prepared {

struct AcceleratorState;

/// Number of samples or tokens over which a loss is the sum, in this micro-batch on this rank. Exactly one is set.
struct LossCount {
  std::optional<int64_t> samples{};
  std::optional<int64_t> tokens{};
};

enum class LossUnit { none, means, samples, tokens };

/// Unit and count of the losses of one accumulation window, on this rank.
///
/// Within a window, several sums in one micro-batch, or sums beside means, are rejected, because the divisor would be
/// ambiguous.
class WindowCount {
 public:
  WindowCount() = default;
  /// Restores the count of an earlier run, between two micro-batches.
  WindowCount(LossUnit unit, int64_t total, int64_t undivided) : unit_(unit), total_(total), undivided_(undivided) {}
  void begin_micro_batch(bool of_new_window, bool of_several);
  void end_micro_batch() { strict_ = false; }

  /// \throws Error (usage) if the count is invalid or does not match the other counts of the window.
  void add(const LossCount& count, const RankContext& place);
  /// Adds a loss that is a mean.
  /// \throws Error (usage) if the window contains sums.
  void add_mean(const RankContext& place) { take(LossUnit::means, place); }

  [[nodiscard]] LossUnit unit() const { return unit_; }
  [[nodiscard]] int64_t total() const { return total_; }
  /// Number of losses with gradients that are not divided yet.
  [[nodiscard]] int64_t undivided() const { return undivided_; }
  void divided() { total_ = undivided_ = 0; }

 private:
  void take(LossUnit unit, const RankContext& place);

  LossUnit unit_ = LossUnit::none;
  int64_t total_ = 0;
  int64_t undivided_ = 0;
  bool strict_ = false;   // within a micro-batch of a window of several
  bool counted_ = false;  // this micro-batch contains a sum
};

/// Returns the factor by which backward() multiplies a loss that is a sum. Within a window it is 1. At the end of a
/// window it is the world size divided by the count of all ranks, and the gradients of the earlier micro-batches have
/// been multiplied by it, too. Collective only at the end of a window.
double weight_of_sum(AcceleratorState& shared, const LossCount& count);
/// Returns the factor for a loss that is a mean: 1/k in a window of k micro-batches, 1/m in a short last window of m.
double weight_of_mean(AcceleratorState& shared);
/// Must be called before an optimizer step.
/// \throws Error (usage) if the gradients are sums that are not divided yet.
void check_divided(const AcceleratorState& shared);

}  // namespace accelerate::prepared

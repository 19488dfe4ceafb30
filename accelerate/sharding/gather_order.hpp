// SPDX-License-Identifier: Apache-2.0
// Private: the order in which a rank gathers units and reduces their gradients. A value, no tensors.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/base/hash.hpp"

namespace accelerate::sharding {

/// Records the collectives of a model's units. The order of the previous pass predicts the next gather. A wrong
/// prediction costs time only.
class GatherOrder {
 public:
  /// Begins a pass: a forward, and the backward that follows.
  /// \param learns  True if the forward builds a graph. Passes with and without one are predicted separately.
  void begin_pass(bool learns);
  /// \param in_backward  True if the unit was gathered for an operator of the backward.
  void record_gather(int64_t unit, bool in_backward = false);
  void record_reduction(int64_t unit);

  /// Returns the unit that the previous pass gathered after the gathers of this pass, if they are the same so far.
  [[nodiscard]] std::optional<int64_t> predicted() const;
  /// Returns true if there is a predicted gather, and an operator of the backward will need it.
  [[nodiscard]] bool predicts_backward() const;

  /// Returns a number that depends on all records since the last call of clear_history().
  [[nodiscard]] int64_t hash() const { return static_cast<int64_t>(hash_ >> 1U); }
  /// The same for the reductions alone.
  [[nodiscard]] int64_t reduction_hash() const { return static_cast<int64_t>(reduction_hash_ >> 1U); }
  /// True if there are records of reductions since the last call of clear_history().
  [[nodiscard]] bool has_reductions() const { return reduction_hash_ != base::kEmptyHash; }
  /// Returns "gather 0, gather 1, reduce 1, ..." since the last call of clear_history(); at most 200 records.
  [[nodiscard]] std::string history() const;
  /// The reductions of history().
  [[nodiscard]] std::string reduction_history() const;
  void clear_history();

 private:
  struct Gather {
    int64_t unit = 0;
    bool in_backward = false;
  };

  /// Returns the predicted gather, or null.
  [[nodiscard]] const Gather* next_gather() const;
  void add(int64_t code);
  [[nodiscard]] std::string history_text(bool with_gathers) const;

  bool learns_ = true;
  bool is_predictable_ = false;
  std::vector<Gather> gathers_;                  // of this pass
  std::array<std::vector<Gather>, 2> previous_;  // of the previous pass without and with a graph
  uint64_t hash_ = base::kEmptyHash, reduction_hash_ = base::kEmptyHash;
  std::vector<int64_t> history_;
};

}  // namespace accelerate::sharding

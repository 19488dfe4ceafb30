// SPDX-License-Identifier: Apache-2.0
// Divides parameters into equal parts, one per rank. Pure values, no tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace accelerate::sharding {

/// Properties of one parameter.
struct ShardItem {
  int64_t numel = 0;
  int64_t element_bytes = 1;
  /// Only parameters with equal keys share a unit: dtype and device, "Float cpu".
  std::string key{};
  /// Only parameters of the same group share a unit.
  int64_t group = 0;
};

/// Parameters that are gathered in one collective, as if they were one flat tensor.
struct ShardUnit {
  std::string key{};
  std::vector<int64_t> items{};    ///< indices of the parameters
  std::vector<int64_t> offsets{};  ///< start of each parameter in the flat tensor, in elements; aligned to 64 bytes
  int64_t numel = 0;               ///< elements of the flat tensor with padding, a multiple of ranks x 64 bytes
  int64_t group = 0;
  bool operator==(const ShardUnit&) const = default;
};

struct ShardPlan {
  int64_t ranks = 1;
  std::vector<ShardUnit> units{};
  bool operator==(const ShardPlan&) const = default;
};

/// The part of one parameter that a rank owns: elements [begin, end) in memory order.
struct ShardRange {
  int64_t item = 0;
  int64_t begin = 0, end = 0;
  /// Start in the rank's part of the unit.
  int64_t offset = 0;
  bool operator==(const ShardRange&) const = default;
};

/// Fills units in the order of the parameters until they have unit_bytes. Rank r owns the r-th of equal parts of each
/// unit, so a part may begin and end within a parameter. Pure function: equal on all ranks for equal arguments.
/// \param ranks       At least 1.
/// \param unit_bytes  Maximum size of a unit without padding, at least 1; a larger parameter has its own unit.
[[nodiscard]] ShardPlan plan_shards(std::span<const ShardItem> items, int64_t ranks, int64_t unit_bytes);

/// Returns the ranges that a rank owns in a unit of the plan, in the order of the unit. Parameters without an element
/// in the rank's part are left out.
[[nodiscard]] std::vector<ShardRange> ranges_of(const ShardUnit& unit, std::span<const ShardItem> items, int64_t ranks,
                                                int64_t rank);

}  // namespace accelerate::sharding

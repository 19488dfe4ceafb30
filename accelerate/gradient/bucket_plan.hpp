// SPDX-License-Identifier: Apache-2.0
// Which parameters share one all-reduce, and in which order the all-reduces start. A value, no tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "accelerate/base/error.hpp"

namespace accelerate::gradient {

struct BucketOptions {
  /// Largest bucket, in bytes; a parameter that is larger has a bucket of its own. Smaller overlaps earlier, larger
  /// uses the link better.
  int64_t cap_bytes = 25 << 20;
  /// First bucket, in bytes; small, so that the first all-reduce starts early.
  int64_t first_cap_bytes = 1 << 20;
  bool operator==(const BucketOptions&) const = default;
};

/// \throws Error (usage) for sizes below 1.
void check(const BucketOptions& options, const Place& place);

/// One parameter as the plan sees it.
struct BucketItem {
  int64_t bytes = 0;
  /// Only items of one key share a bucket: dtype and device, "Float cpu".
  std::string key{};
};

struct Bucket {
  std::string key{};
  std::vector<int64_t> items{};  ///< indices into the items, in order of arrival
  int64_t bytes = 0;
  bool operator==(const Bucket&) const = default;
};

struct BucketPlan {
  /// In the order in which they are complete, which is the order in which they are reduced.
  std::vector<Bucket> buckets{};
  bool operator==(const BucketPlan&) const = default;
};

/// Pure function: equal on all ranks for equal arguments.
/// \param items  All parameters.
/// \param order  Indices into items in order of arrival in backward; each index once.
[[nodiscard]] BucketPlan plan_buckets(std::span<const BucketItem> items, std::span<const int64_t> order,
                                      const BucketOptions& options = {}, const Place& place = {});

/// "Float cpu 1000 bytes: 3 2 | Float cpu 20 bytes: 0", one bucket between bars.
[[nodiscard]] std::string to_string(const BucketPlan& plan);

}  // namespace accelerate::gradient

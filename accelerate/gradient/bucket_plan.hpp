// SPDX-License-Identifier: Apache-2.0
// Groups parameters into all-reduces and orders them. Pure values, no tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "accelerate/base/error.hpp"

namespace accelerate::gradient {

struct BucketOptions {
  /// Maximum size of a bucket in bytes. Small buckets overlap earlier, large ones use the network better. A model with
  /// fewer than eight such buckets has smaller ones, of an eighth of its gradients, at least 4 MiB. A larger parameter
  /// has its own bucket, which may also contain the parameters before it up to an eighth of the maximum.
  int64_t cap_bytes = 25 << 20;
  /// Maximum size of the first bucket in bytes; small, so that the first all-reduce starts early.
  int64_t first_cap_bytes = 1 << 20;
  bool operator==(const BucketOptions&) const = default;
};

/// \throws Error (usage) for sizes below 1.
void check_bucket_options(const BucketOptions& options, const RankContext& place);

/// Properties of one parameter.
struct BucketItem {
  int64_t bytes = 0;
  /// Only items with equal keys share a bucket: dtype and device, "Float cpu".
  std::string key{};
};

struct Bucket {
  std::string key{};
  std::vector<int64_t> items{};  ///< indices into the items, in order of arrival
  int64_t bytes = 0;
  bool operator==(const Bucket&) const = default;
};

struct BucketPlan {
  /// Buckets in the order in which they complete and are reduced.
  std::vector<Bucket> buckets{};
  bool operator==(const BucketPlan&) const = default;
};

/// Pure function: equal on all ranks for equal arguments.
/// \param items  All parameters.
/// \param order  Indices into items in order of arrival in backward; each index once.
[[nodiscard]] BucketPlan plan_buckets(std::span<const BucketItem> items, std::span<const int64_t> order,
                                      const BucketOptions& options = {}, const RankContext& place = {});

/// Returns "Float cpu 1000 bytes: 3 2 | Float cpu 20 bytes: 0"; bars separate buckets.
[[nodiscard]] std::string to_string(const BucketPlan& plan);

}  // namespace accelerate::gradient

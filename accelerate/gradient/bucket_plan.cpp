// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/bucket_plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace accelerate::gradient {
namespace {

// The last bucket does not overlap with the backward pass, so a model has about this number of buckets at least. The
// size below which buckets are not divided limits the number of messages of a small model.
constexpr int64_t kBuckets = 8;
constexpr int64_t kUndivided = 4 << 20;

// A bucket below this part of its cap is not worth a message.
constexpr int64_t kTinyPart = 8;

// A bucket, and the position of its last item in the order.
struct Open {
  Bucket bucket;
  int64_t target;  // size from which the bucket accepts no further item
  int64_t cap;
  int64_t last = 0;

  [[nodiscard]] bool is_full_for(const BucketItem& item) const {
    if (bucket.bytes >= target) return true;
    return bucket.bytes + item.bytes > cap && bucket.bytes > cap / kTinyPart;
  }
};

}  // namespace

void check_bucket_options(const BucketOptions& options, const RankContext& place) {
  if (options.cap_bytes < 1) {
    base::fail(ErrorKind::usage, place, "plan_buckets", "cap_bytes is {}, must be at least 1", options.cap_bytes);
  }
  if (options.first_cap_bytes < 1) {
    base::fail(ErrorKind::usage, place, "plan_buckets", "first_cap_bytes is {}, must be at least 1",
               options.first_cap_bytes);
  }
}

BucketPlan plan_buckets(std::span<const BucketItem> items, std::span<const int64_t> order, const BucketOptions& options,
                        const RankContext& place) {
  check_bucket_options(options, place);
  const int64_t total = std::transform_reduce(order.begin(), order.end(), int64_t{0}, std::plus<>(),
                                              [&](int64_t i) { return items[static_cast<size_t>(i)].bytes; });
  const int64_t target = std::min(options.cap_bytes, std::max(total / kBuckets, kUndivided));
  std::vector<Open> all;
  std::vector<size_t> open;  // indices into all of the buckets that accept items, one per key
  for (size_t at = 0; at < order.size(); ++at) {
    const BucketItem& item = items[static_cast<size_t>(order[at])];
    auto found = std::find_if(open.begin(), open.end(), [&](size_t i) { return all[i].bucket.key == item.key; });
    if (found != open.end() && all[*found].is_full_for(item)) {
      open.erase(found);
      found = open.end();
    }
    if (found == open.end()) {
      const bool is_first = all.empty();
      all.push_back({.bucket = {.key = item.key},
                     .target = is_first ? options.first_cap_bytes : target,
                     .cap = is_first ? options.first_cap_bytes : options.cap_bytes});
      found = open.insert(open.end(), all.size() - 1);
    }
    Open& taker = all[*found];
    taker.bucket.items.push_back(order[at]);
    taker.bucket.bytes += item.bytes;
    taker.last = static_cast<int64_t>(at);
  }
  // A bucket is complete when its last item arrives. With several keys that order differs from the order of creation.
  std::stable_sort(all.begin(), all.end(), [](const Open& a, const Open& b) { return a.last < b.last; });
  BucketPlan plan;
  for (Open& one : all) plan.buckets.push_back(std::move(one.bucket));
  return plan;
}

std::string to_string(const BucketPlan& plan) {
  std::vector<std::string> parts;
  for (const Bucket& bucket : plan.buckets) {
    parts.push_back(fmt::format("{} {} bytes: {}", bucket.key, bucket.bytes, fmt::join(bucket.items, " ")));
  }
  return fmt::format("{}", fmt::join(parts, " | "));
}

}  // namespace accelerate::gradient

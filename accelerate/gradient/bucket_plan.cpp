// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/bucket_plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace accelerate::gradient {
namespace {

// A bucket, and the position of its last item in the order.
struct Open {
  Bucket bucket;
  int64_t cap;
  int64_t last;
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
  std::vector<Open> all;
  std::vector<size_t> open;  // indices into all of the buckets that accept items, one per key
  for (size_t at = 0; at < order.size(); ++at) {
    const BucketItem& item = items[static_cast<size_t>(order[at])];
    auto found = std::find_if(open.begin(), open.end(), [&](size_t i) { return all[i].bucket.key == item.key; });
    if (found != open.end() && all[*found].bucket.bytes + item.bytes > all[*found].cap) {
      open.erase(found);
      found = open.end();
    }
    if (found == open.end()) {
      all.push_back({{.key = item.key}, all.empty() ? options.first_cap_bytes : options.cap_bytes, 0});
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

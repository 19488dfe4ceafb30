// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/bucket_plan.hpp"

#include <numeric>

#include "tests/testing.hpp"

using namespace accelerate;
using namespace accelerate::gradient;

namespace {

struct PlanRow {
  const char* what;
  std::vector<BucketItem> items;
  std::vector<int64_t> order;
  BucketOptions options;
  const char* plan;
};

const std::string f = "Float cpu";
const std::string b = "BFloat16 cpu";

}  // namespace

TEST_CASE("parameters share a bucket in order of arrival, up to the cap") {
  const std::vector<PlanRow> rows{
      {"nothing", {}, {}, {}, ""},
      {"one", {{10, f}}, {0}, {}, "Float cpu 10 bytes: 0"},
      {"order of arrival, not of registration",
       {{10, f}, {20, f}, {30, f}},
       {2, 0, 1},
       {},
       "Float cpu 60 bytes: 2 0 1"},
      {"the first bucket is small",
       {{10, f}, {10, f}, {10, f}, {10, f}},
       {3, 2, 1, 0},
       {.cap_bytes = 100, .first_cap_bytes = 10},
       "Float cpu 10 bytes: 3 | Float cpu 30 bytes: 2 1 0"},
      {"a bucket is filled to the cap, not above",
       {{10, f}, {10, f}, {10, f}, {10, f}},
       {0, 1, 2, 3},
       {.cap_bytes = 25, .first_cap_bytes = 25},
       "Float cpu 20 bytes: 0 1 | Float cpu 20 bytes: 2 3"},
      {"a parameter above the cap is alone",
       {{10, f}, {99, f}, {10, f}},
       {0, 1, 2},
       {.cap_bytes = 50, .first_cap_bytes = 50},
       "Float cpu 10 bytes: 0 | Float cpu 99 bytes: 1 | Float cpu 10 bytes: 2"},
      {"a tiny bucket also takes a parameter that exceeds the cap",
       {{30, f}, {3, f}, {50, f}, {4, f}, {50, f}},
       {0, 1, 2, 3, 4},
       {.cap_bytes = 50, .first_cap_bytes = 30},
       "Float cpu 30 bytes: 0 | Float cpu 53 bytes: 1 2 | Float cpu 54 bytes: 3 4"},
      {"an eighth of the cap is tiny, more is not",
       {{10, f}, {6, f}, {50, f}, {7, f}, {50, f}},
       {0, 1, 2, 3, 4},
       {.cap_bytes = 50, .first_cap_bytes = 10},
       "Float cpu 10 bytes: 0 | Float cpu 56 bytes: 1 2 | Float cpu 7 bytes: 3 | Float cpu 50 bytes: 4"},
      {"an empty parameter has a place", {{0, f}, {10, f}}, {0, 1}, {}, "Float cpu 10 bytes: 0 1"},
  };
  for (const PlanRow& row : rows) {
    CAPTURE(row.what);
    CHECK(to_string(plan_buckets(row.items, row.order, row.options)) == row.plan);
  }
}

TEST_CASE("a model with few buckets of the maximum size has about eight smaller ones") {
  const auto sizes = [](int64_t bytes_of_item, int64_t count) {
    const std::vector<BucketItem> items(static_cast<size_t>(count), {bytes_of_item, f});
    std::vector<int64_t> order(items.size());
    std::iota(order.begin(), order.end(), 0);
    std::vector<int64_t> megabytes;
    for (const Bucket& bucket : plan_buckets(items, order).buckets) megabytes.push_back(bucket.bytes >> 20);
    return megabytes;
  };
  constexpr int64_t kMegabyte = 1 << 20;
  CHECK(sizes(kMegabyte, 1) == std::vector<int64_t>{1});
  CHECK(sizes(kMegabyte, 5) == std::vector<int64_t>{1, 4});  // 4 MiB are not divided
  CHECK(sizes(kMegabyte, 10) == std::vector<int64_t>{1, 4, 4, 1});
  CHECK(sizes(kMegabyte, 64) == std::vector<int64_t>{1, 8, 8, 8, 8, 8, 8, 8, 7});
  std::vector<int64_t> large(17, 25);
  large.front() = 1;
  CHECK(sizes(kMegabyte, 401) == large);
  CHECK(sizes(64 * kMegabyte, 3) == std::vector<int64_t>{64, 64, 64});
}

TEST_CASE("buckets have one dtype and device, and the first complete bucket is reduced first") {
  const std::vector<BucketItem> items{{10, f}, {20, b}, {10, f}, {20, b}, {10, f}};
  const std::vector<int64_t> order{4, 3, 2, 1, 0};
  CHECK(to_string(plan_buckets(items, order)) == "BFloat16 cpu 40 bytes: 3 1 | Float cpu 30 bytes: 4 2 0");
  CHECK(to_string(plan_buckets(items, order, {.cap_bytes = 20, .first_cap_bytes = 20})) ==
        "BFloat16 cpu 20 bytes: 3 | Float cpu 20 bytes: 4 2 | BFloat16 cpu 20 bytes: 1 | Float cpu 10 bytes: 0");
}

TEST_CASE("equal arguments make equal plans") {
  const std::vector<BucketItem> items{{10, f}, {20, b}, {10, f}};
  const std::vector<int64_t> order{2, 1, 0};
  CHECK(plan_buckets(items, order) == plan_buckets(items, order));
}

TEST_CASE("a cap below one byte is refused, with the value in the message") {
  const RankContext here{.rank = 1, .world_size = 2, .host = "gpu-a"};
  CHECK_THROWS_WITH((void)plan_buckets({}, {}, {.cap_bytes = 0}, here),
                    "[rank 1 of 2, gpu-a] plan_buckets: cap_bytes is 0, must be at least 1");
  CHECK_THROWS_WITH((void)plan_buckets({}, {}, {.first_cap_bytes = -4}, here),
                    "[rank 1 of 2, gpu-a] plan_buckets: first_cap_bytes is -4, must be at least 1");
}

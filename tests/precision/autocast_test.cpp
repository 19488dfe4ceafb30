// SPDX-License-Identifier: Apache-2.0
#include "accelerate/precision/autocast.hpp"

#include "tests/testing.hpp"
//
#include <ATen/autocast_mode.h>

#include <thread>

using accelerate::precision::Autocast;
using accelerate::precision::AutocastRegion;

namespace {

constexpr AutocastRegion kBf16{.device = at::kCPU, .dtype = at::kBFloat16};
constexpr AutocastRegion kFp16{.device = at::kCPU, .dtype = at::kHalf};
constexpr AutocastRegion kOff{.device = at::kCPU, .dtype = at::kBFloat16, .enabled = false};

at::ScalarType dtype_of_a_product() { return torch::ones({2, 2}).mm(torch::ones({2, 2})).scalar_type(); }

/// Enabled, dtype, cache, depth: everything that a region changes.
auto state_of_this_thread() {
  const int depth = at::autocast::increment_nesting();
  at::autocast::decrement_nesting();
  return std::tuple{at::autocast::is_autocast_enabled(at::kCPU), at::autocast::get_autocast_dtype(at::kCPU),
                    at::autocast::is_autocast_cache_enabled(), depth};
}

}  // namespace

TEST_CASE("matrix products use the region's dtype within it, and float32 before and after") {
  CHECK((dtype_of_a_product() == at::kFloat));
  {
    const Autocast autocast(kBf16);
    CHECK((dtype_of_a_product() == at::kBFloat16));
  }
  {
    const Autocast autocast(kFp16);
    CHECK((dtype_of_a_product() == at::kHalf));
  }
  CHECK((dtype_of_a_product() == at::kFloat));
}

TEST_CASE("regions nest: off within on, another dtype within off, and each end restores the outer mode") {
  const auto outside = state_of_this_thread();
  {
    const Autocast on(kBf16);
    const auto first = state_of_this_thread();
    {
      const Autocast off(kOff);
      CHECK((dtype_of_a_product() == at::kFloat));
      {
        const Autocast half(kFp16);
        CHECK((dtype_of_a_product() == at::kHalf));
      }
      CHECK((dtype_of_a_product() == at::kFloat));
    }
    CHECK(state_of_this_thread() == first);
    CHECK((dtype_of_a_product() == at::kBFloat16));
  }
  CHECK(state_of_this_thread() == outside);
}

TEST_CASE("an exception restores the thread's mode from before the region") {
  const auto outside = state_of_this_thread();
  AutocastRegion uncached = kBf16;
  uncached.cache = false;
  CHECK_THROWS_WITH(
      [&] {
        const Autocast first(kBf16);
        const Autocast second(uncached);
        CHECK_FALSE(at::autocast::is_autocast_cache_enabled());
        throw std::runtime_error("half-way");
      }(),
      "half-way");
  CHECK(state_of_this_thread() == outside);
}

TEST_CASE("no region changes nothing") {
  const Autocast on(kBf16);
  const auto before = state_of_this_thread();
  const Autocast none(std::nullopt);
  CHECK(state_of_this_thread() == before);
}

TEST_CASE("casts of weights are kept until the outermost region ends, not the inner one") {
  const auto weight = torch::ones({2, 2}).requires_grad_();
  const auto product = [&] { return torch::ones({2, 2}).mm(weight).sum().item<float>(); };
  const auto zero = [&] {
    const torch::NoGradGuard no_grad;
    weight.zero_();
  };
  {
    const Autocast outer(kBf16);
    {
      const Autocast inner(kBf16);
      CHECK(product() == 8);
    }
    zero();
    CHECK(product() == 8);  // the reason why a step within a region needs ...
    accelerate::precision::drop_cached_casts();
    CHECK(product() == 0);
  }
  {
    const torch::NoGradGuard no_grad;
    weight.fill_(1);
  }
  {
    const Autocast again(kBf16);
    CHECK(product() == 8);
  }
  zero();
  {
    const Autocast again(kBf16);
    CHECK(product() == 0);
  }
}

TEST_CASE("a region applies to its own thread only") {
  const Autocast on(kBf16);
  std::thread([] { CHECK((dtype_of_a_product() == at::kFloat)); }).join();
}

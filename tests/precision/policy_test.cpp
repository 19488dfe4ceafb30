// SPDX-License-Identifier: Apache-2.0
#include "accelerate/precision/policy.hpp"

#include "tests/testing.hpp"

using accelerate::env::Precision;
using accelerate::precision::LowPrecision;
using accelerate::precision::Policy;
namespace precision = accelerate::precision;

namespace {

const accelerate::RankContext kRankOne{.rank = 1, .world_size = 2, .host = "gpu-b"};

void check_on(const Policy& policy, const char* device, const LowPrecision& can) {
  precision::check_precision_policy(policy, c10::Device(device), can, kRankOne);
}

}  // namespace

TEST_CASE("mixed_precision names policies: no changes nothing, bf16 and fp16 keep the parameters' dtype") {
  CHECK(precision::policy_of(Precision::no) == Policy{});
  CHECK(precision::policy_of(Precision::bf16) == Policy{.compute = at::kBFloat16, .output = at::kFloat});
  CHECK(precision::policy_of(Precision::fp16) == Policy{.compute = at::kHalf, .output = at::kFloat});
  CHECK_FALSE(precision::policy_of(Precision::bf16).scales_loss());
  CHECK(precision::policy_of(Precision::fp16).scales_loss());
}

TEST_CASE("the CPU supports both") {
  const auto can = precision::low_precision_of(at::kCPU);
  CHECK(can.autocast);
  CHECK(can.fp16);
  CHECK(can.bf16);
}

TEST_CASE("an unsupported dtype is refused with the supported ones") {
  const auto bf16 = precision::policy_of(Precision::bf16);
  const auto fp16 = precision::policy_of(Precision::fp16);
  CHECK_THROWS_WITH(check_on(bf16, "cuda:1", {.bf16 = false}),
                    "[rank 1 of 2, gpu-b] mixed_precision: bf16 is requested, cuda:1 computes in float32 and fp16 "
                    "only; use no or fp16");
  CHECK_THROWS_WITH(check_on(fp16, "xpu:0", {.fp16 = false}),
                    "[rank 1 of 2, gpu-b] mixed_precision: fp16 is requested, xpu:0 computes in float32 and bf16 only; "
                    "use no or bf16");
  CHECK_THROWS_WITH(
      check_on(bf16, "vulkan", {.autocast = false}),
      "[rank 1 of 2, gpu-b] mixed_precision: bf16 is requested, LibTorch has no autocast for vulkan; use no");
  check_on(precision::policy_of(Precision::no), "vulkan", {.autocast = false, .fp16 = false, .bf16 = false});
  check_on(fp16, "cuda:1", {.bf16 = false});
}

TEST_CASE("invalid policy dtypes are refused") {
  CHECK_THROWS_WITH(
      check_on({.compute = at::kDouble}, "cpu", {}),
      "[rank 1 of 2, gpu-b] mixed_precision: the policy's compute dtype is Double, must be bfloat16 (bf16) "
      "or float16 (fp16)");
  CHECK_THROWS_WITH(
      check_on({.parameter = at::kHalf, .compute = at::kHalf}, "cpu", {}),
      "[rank 1 of 2, gpu-b] mixed_precision: the policy's parameter dtype is fp16, must be bfloat16 (bf16) "
      "or float32; gradients of fp16 parameters overflow and cannot be unscaled");
  CHECK_THROWS_WITH(check_on({.parameter = at::kBFloat16, .compute = at::kHalf}, "cpu", {}),
                    "[rank 1 of 2, gpu-b] mixed_precision: the policy's parameters are bf16 and its compute dtype is "
                    "fp16; compute in bf16 too");
}

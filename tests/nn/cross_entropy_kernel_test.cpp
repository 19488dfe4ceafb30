// SPDX-License-Identifier: Apache-2.0
// Selection of the fused kernel: request, first use, failures, and the size of a block.
#include "tests/testing.hpp"
//
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/nn/cross_entropy_kernel.hpp"
#include "accelerate/nn/linear_cross_entropy.hpp"

using accelerate::nn::CrossEntropyArguments;
using accelerate::nn::CrossEntropyKernel;
using accelerate::nn::CrossEntropyKernels;
using accelerate::nn::fused_cross_entropy_requested;

namespace {

struct NoKernel final : CrossEntropyKernel {
  void launch(const CrossEntropyArguments&, at::ScalarType, int64_t) const override {}
};

/// ACCELERATE_FUSED_CROSS_ENTROPY during a test.
struct FusedVariable {
  explicit FusedVariable(const char* value) { ::setenv(kName, value, 1); }
  ~FusedVariable() { ::unsetenv(kName); }
  FusedVariable(const FusedVariable&) = delete;
  FusedVariable& operator=(const FusedVariable&) = delete;
  static constexpr const char* kName = "ACCELERATE_FUSED_CROSS_ENTROPY";
};

const c10::Device first_gpu(c10::kCUDA, 0), second_gpu(c10::kCUDA, 1);

}  // namespace

TEST_CASE("each device has one kernel, also if many threads request it first") {
  std::atomic<int> made = 0;
  CrossEntropyKernels kernels([&](c10::Device) {
    ++made;
    return std::make_unique<NoKernel>();
  });
  std::vector<const CrossEntropyKernel*> seen(8);
  {
    std::vector<std::jthread> threads;
    for (auto& one : seen) threads.emplace_back([&] { one = kernels.of(first_gpu); });
  }
  for (const auto* one : seen) CHECK(one == seen[0]);
  CHECK(seen[0] != nullptr);
  CHECK(made == 1);
  CHECK(kernels.of(second_gpu) != seen[0]);
  CHECK(made == 2);
}

TEST_CASE("a kernel that cannot be loaded is one warning, and LibTorch's operators are used") {
  std::vector<std::string> lines;
  const auto before = accelerate::base::set_log_handler([&](auto, std::string_view line) { lines.emplace_back(line); });
  int tries = 0;
  CrossEntropyKernels kernels([&](c10::Device device) -> std::unique_ptr<CrossEntropyKernel> {
    ++tries;
    if (device == second_gpu) return std::make_unique<NoKernel>();
    accelerate::base::fail(accelerate::ErrorKind::environment, {}, "linear_cross_entropy", "NVRTC cannot be loaded");
  });
  for (int i = 0; i < 3; ++i) CHECK(kernels.of(first_gpu) == nullptr);
  CHECK(kernels.of(second_gpu) != nullptr);
  accelerate::base::set_log_handler(before);
  CHECK(tries == 2);
  CHECK(lines == std::vector<std::string>{
                     "the fused kernel of linear_cross_entropy is not used on cuda:0, LibTorch's operators are: "
                     "linear_cross_entropy: NVRTC cannot be loaded"});
}

TEST_CASE("the option has precedence over the variable, and without both the kernel is not requested") {
  CHECK_FALSE(fused_cross_entropy_requested({}));
  CHECK(fused_cross_entropy_requested(true));
  for (const char* value : {"1", "true"}) {
    const FusedVariable variable(value);
    CHECK(fused_cross_entropy_requested({}));
    CHECK_FALSE(fused_cross_entropy_requested(false));
  }
  for (const char* value : {"0", "no", ""}) {
    const FusedVariable variable(value);
    CHECK_FALSE(fused_cross_entropy_requested({}));
    CHECK(fused_cross_entropy_requested(true));
  }
  const FusedVariable variable("maybe");
  const at::Tensor x = torch::ones({2, 3}), weight = torch::ones({4, 3}), target = torch::zeros({2}, at::kLong);
  CHECK_THROWS_WITH_AS(accelerate::nn::linear_cross_entropy(x, weight, target),
                       "linear_cross_entropy: ACCELERATE_FUSED_CROSS_ENTROPY is 'maybe', must be true or false",
                       accelerate::Error);
  CHECK_NOTHROW(accelerate::nn::linear_cross_entropy(x, weight, target, {.fused_kernel = false}));
}

TEST_CASE("on the CPU a requested kernel changes nothing") {
  const at::Tensor x = torch::randn({5, 3}), weight = torch::randn({11, 3}), target = torch::randint(11, {5});
  CHECK(accelerate::nn::cross_entropy_kernel(c10::kCPU, at::kFloat) == nullptr);
  CHECK(torch::equal(accelerate::nn::linear_cross_entropy(x, weight, target, {.fused_kernel = true}),
                     accelerate::nn::linear_cross_entropy(x, weight, target)));
}

TEST_CASE("a block has a power of two of threads, at most one for 16 bytes") {
  using accelerate::nn::cross_entropy_threads;
  CHECK(cross_entropy_threads(0, at::kFloat) == 32);
  CHECK(cross_entropy_threads(1, at::kFloat) == 32);
  CHECK(cross_entropy_threads(255, at::kFloat) == 32);
  CHECK(cross_entropy_threads(256, at::kFloat) == 64);
  CHECK(cross_entropy_threads(1000, at::kFloat) == 128);
  CHECK(cross_entropy_threads(1000, at::kHalf) == 64);
  CHECK(cross_entropy_threads(50257, at::kBFloat16) == accelerate::nn::kCrossEntropyThreads);
}

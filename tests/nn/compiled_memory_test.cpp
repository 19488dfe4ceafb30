// SPDX-License-Identifier: Apache-2.0
// Out-of-memory errors inside compiled code, which reports them to its caller without type and text.
#include "tests/nn/compiled_support.hpp"
//
#include <c10/core/CPUAllocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "accelerate/accelerate.hpp"
#include "accelerate/device/failed_allocation.hpp"
#include "accelerate/device/out_of_memory_error.hpp"
#include "accelerate/job/batch_size.hpp"
#include "tests/cpu_allocator.hpp"

// Named, because other files that are compiled together have functions of the same names.
namespace compiled_memory_testing {

using accelerate::device::FailedAllocation;
using accelerate::device::is_out_of_memory_error;
using compiled_testing::compiled_mlp;
using testing::refusal;

namespace {

constexpr size_t kTooMuch = size_t{1} << 60;

/// In its scope, LibTorch's allocator fails above a number of bytes, as if the machine had no more memory.
class LimitedMemory {
 public:
  explicit LimitedMemory(size_t bytes) {
    allocator().limit = bytes;
    c10::SetCPUAllocator(&allocator(), testing::kCpuAllocatorPriority);
  }
  ~LimitedMemory() { c10::SetCPUAllocator(allocator().inner, testing::kCpuAllocatorPriority); }
  LimitedMemory(const LimitedMemory&) = delete;
  LimitedMemory& operator=(const LimitedMemory&) = delete;

 private:
  struct Allocator final : c10::Allocator {
    c10::DataPtr allocate(size_t bytes) override { return inner->allocate(bytes > limit ? kTooMuch : bytes); }
    c10::DeleterFnPtr raw_deleter() const override { return inner->raw_deleter(); }
    void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

    c10::Allocator* inner = c10::GetCPUAllocator();
    std::atomic<size_t> limit = kTooMuch;
  };
  static Allocator& allocator() {
    static auto* const one = new Allocator();
    return *one;
  }
};

constexpr int64_t kRows = 4000;  // inputs have 192 kB, activations 256 kB
constexpr size_t kLimit = size_t{200} << 10;
const std::string kReason = "DefaultCPUAllocator: can't allocate memory: you tried to allocate " +
                            std::to_string(kTooMuch) + " bytes. Error code 12 (Cannot allocate memory)";

at::Tensor inputs() { return torch::ones({kRows, 6}, torch::kDouble); }

}  // namespace

// The sanitizers end a process that allocates too much.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("memory that is exhausted inside compiled code has the report of other forwards and backwards") {
  accelerate::Accelerator accelerator({.cpu = true});
  auto net = compiled_mlp();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const at::Tensor x = inputs();
  const std::string forward = refusal([&] {
    const LimitedMemory limited(kLimit);
    model(x);
  });
  CAPTURE(forward);
  CHECK(forward.find("forward: " + kReason + "; known tensors: ") != std::string::npos);
  CHECK(forward.find("fc.weight [8, 6] Double (384 bytes)") != std::string::npos);
  CHECK(forward.ends_with("use a smaller batch, or call find_executable_batch_size()"));
  const at::Tensor loss = model(x).square().mean();  // the package can be used again
  const std::string backward = refusal([&] {
    const LimitedMemory limited(kLimit);
    accelerator.backward(loss);
  });
  CAPTURE(backward);
  CHECK(backward.find("backward: " + kReason) != std::string::npos);
  net->eval();
  const torch::NoGradGuard no_grad;
  const std::string evaluation = refusal([&] {
    const LimitedMemory limited(kLimit);
    model(x);
  });
  CAPTURE(evaluation);
  CHECK(evaluation.find("forward: " + kReason) != std::string::npos);
  model(x);
}

TEST_CASE("find_executable_batch_size() finds the batch size of a compiled module") {
  accelerate::Accelerator accelerator({.cpu = true});
  auto net = compiled_mlp();
  auto model = accelerator.prepare(net);
  const LimitedMemory limited(kLimit);
  const int64_t found = accelerator.find_executable_batch_size(
      [&](int64_t size) {
        model(torch::ones({size, 6}, torch::kDouble));
      },
      kRows);
  CHECK(found < kRows);
  CHECK(found >= 2500);
}

TEST_CASE("a failed allocation behind a C interface keeps its error") {
  const LimitedMemory limited(kLimit);
  const auto fail_silently = [] {
    try {
      static_cast<void>(at::empty({int64_t{1} << 20}));
    } catch (const std::exception&) {  // as the C interface of compiled code
    }
  };
  {
    const FailedAllocation observed;
    static_cast<void>(at::empty({10}));
    CHECK_NOTHROW(observed.rethrow());
    fail_silently();
    CHECK(refusal<c10::Error>([&] { observed.rethrow(); }).find(kReason) != std::string::npos);
  }
  try {
    throw std::runtime_error("training in a handler of another error");
  } catch (const std::runtime_error&) {
    const FailedAllocation within;
    static_cast<void>(at::empty({10}));
    CHECK_NOTHROW(within.rethrow());
    fail_silently();
    CHECK(refusal<c10::Error>([&] { within.rethrow(); }).find(kReason) != std::string::npos);
  }
}
#endif

TEST_CASE("a failed allocation of an accelerator, which reports before it throws, is an out-of-memory error") {
  const FailedAllocation observed;
  c10::reportOutOfMemoryToProfiler(3 << 20, 5 << 20, 7 << 20, c10::Device(c10::kCUDA, 1));
  try {
    observed.rethrow();
    FAIL_CHECK("no error");
  } catch (const c10::OutOfMemoryError& error) {
    CHECK(std::string(error.what_without_backtrace()) ==
          "CUDA out of memory. Tried to allocate 3.0 MiB on cuda:1, which has 5.0 MiB allocated and 7.0 MiB reserved");
    CHECK(is_out_of_memory_error(error));
    CHECK(accelerate::job::is_out_of_memory(error));
  }
}

TEST_CASE("the profiler of a thread is not replaced") {
  struct Profiler final : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t, size_t, size_t, c10::Device) override {}
    void reportOutOfMemory(int64_t, size_t, size_t, c10::Device) override { ++failures; }
    [[nodiscard]] bool memoryProfilingEnabled() const override { return false; }
    int failures = 0;
  };
  const auto profiler = std::make_shared<Profiler>();
  const c10::DebugInfoGuard profiled(c10::DebugInfoKind::PROFILER_STATE, profiler);
  const FailedAllocation observed;
  c10::reportOutOfMemoryToProfiler(1, 1, 1, c10::Device(c10::kCUDA, 0));
  CHECK(profiler->failures == 1);
  CHECK_NOTHROW(observed.rethrow());
}

}  // namespace compiled_memory_testing

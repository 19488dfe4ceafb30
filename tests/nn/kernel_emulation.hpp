// SPDX-License-Identifier: Apache-2.0
// Runs the text of the cross-entropy kernel on the CPU: one std::thread for each thread of a block, one block after
// another. Include it in one file of a program only.
#pragma once

#include <c10/core/ScalarType.h>
#include <c10/util/Half.h>

#include <atomic>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstddef>
#include <stdexcept>
#include <thread>
#include <vector>

#include "accelerate/nn/kernels/cross_entropy_arguments.hpp"

namespace accelerate::nn {

// What NVRTC declares.
struct KernelIndex {
  unsigned int x;
};
inline thread_local KernelIndex threadIdx, blockIdx, blockDim;
inline thread_local std::barrier<>* block_barrier = nullptr;
inline std::atomic<int> failed_assertions = 0;

struct alignas(16) [[gnu::may_alias]] uint4 {
  unsigned int x, y, z, w;
};

inline void __syncthreads() { block_barrier->arrive_and_wait(); }
inline void __assertfail(const char*, const char*, unsigned int, const char*, size_t) { ++failed_assertions; }
inline float __expf(float value) { return std::exp(value); }
inline float __uint_as_float(unsigned int bits) { return std::bit_cast<float>(bits); }
inline unsigned int __float_as_uint(float value) { return std::bit_cast<unsigned int>(value); }
inline float float16_value(unsigned short bits) { return c10::detail::fp16_ieee_to_fp32_value(bits); }
inline unsigned short float16_bits(float value) { return c10::detail::fp16_ieee_from_fp32_value(value); }

}  // namespace accelerate::nn

#undef __global__
#undef __shared__
#undef __launch_bounds__
#define __global__
#define __shared__ static  // one block runs at a time
#define __launch_bounds__(threads)
#include "accelerate/nn/kernels/cross_entropy.cu"
#undef __global__
#undef __shared__
#undef __launch_bounds__

namespace nn_testing {

/// \param threads  Threads of a block, a power of two.
inline void emulate_cross_entropy(const accelerate::nn::CrossEntropyArguments& arguments, at::ScalarType dtype,
                                  unsigned int rows, unsigned int threads) {
  namespace emulated = accelerate::nn;
  auto* const kernel = dtype == at::kFloat      ? emulated::cross_entropy_float32
                       : dtype == at::kBFloat16 ? emulated::cross_entropy_bfloat16
                       : dtype == at::kHalf     ? emulated::cross_entropy_float16
                                                : throw std::invalid_argument("no kernel for this dtype");
  std::barrier all(static_cast<std::ptrdiff_t>(threads));
  const auto run = [&](unsigned int thread) {
    emulated::threadIdx = {thread};
    emulated::blockDim = {threads};
    emulated::block_barrier = &all;
    for (unsigned int row = 0; row < rows; ++row) {
      emulated::blockIdx = {row};
      kernel(arguments);
      all.arrive_and_wait();  // all blocks use the same shared memory
    }
  };
  std::vector<std::jthread> running;
  for (unsigned int thread = 0; thread < threads; ++thread) running.emplace_back(run, thread);
}

}  // namespace nn_testing

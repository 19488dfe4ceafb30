// SPDX-License-Identifier: Apache-2.0
#include "accelerate/job/batch_size.hpp"

#include <ATen/ops/full.h>

#include <algorithm>
#include <array>
#include <new>
#include <string_view>

#include "accelerate/comm/error_context.hpp"
#include "accelerate/device/out_of_memory_error.hpp"

namespace accelerate::job {

bool is_out_of_memory(const std::exception& error) {
  if (device::is_out_of_memory_error(error)) return true;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  // LibTorch has no exception type for these errors. Hugging Face Accelerate searches for the same texts.
  constexpr std::array<std::string_view, 3> texts{"out of memory", "CUBLAS_STATUS_ALLOC_FAILED",
                                                  "CUDNN_STATUS_NOT_SUPPORTED"};
  const std::string_view message = error.what();
  return std::any_of(texts.begin(), texts.end(),
                     [&](std::string_view text) { return message.find(text) != std::string_view::npos; });
}

int64_t find_executable_batch_size(const comm::Group& group, const std::function<void(int64_t)>& run,
                                   int64_t starting_batch_size) {
  if (starting_batch_size < 1) {
    base::fail(ErrorKind::usage, group.place(), "find_executable_batch_size",
               "starting_batch_size is {}, must be at least 1", starting_batch_size);
  }
  for (int64_t size = starting_batch_size; size > 0; size = size * 9 / 10) {
    bool fitted = true;
    try {
      run(size);
    } catch (const std::exception& error) {
      if (!is_out_of_memory(error)) throw;
      fitted = false;
    }
    // If one rank fails, all ranks reduce the size, because otherwise their batch sizes would differ.
    const auto all_fitted = at::full({1}, fitted ? 1 : 0, at::kLong);
    comm::with_operation_context("find_executable_batch_size", "it is unknown whether the batch fits on all ranks",
                                 group.place(), [&] { group.all_reduce(all_fitted, comm::ReduceOp::min); });
    if (all_fitted.item<int64_t>() == 1) return size;
  }
  base::fail(ErrorKind::device, group.place(), "find_executable_batch_size",
             "no batch size from {} down fitted into memory, zero was reached; a smaller model is needed",
             starting_batch_size);
}

}  // namespace accelerate::job

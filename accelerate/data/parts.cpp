// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/parts.hpp"

#include <ATen/TensorIterator.h>

#include <algorithm>

#include "accelerate/data/workers.hpp"

namespace accelerate::data {

// at::parallel_for is a template, which without OpenMP in our own flags runs on one thread; the iterator's loop is
// within the library.
void in_parts(const at::Tensor& numbers, int64_t grain, c10::function_ref<void(int64_t, int64_t)> part) {
  const int64_t all = numbers.numel();
  grain = std::max<int64_t>(grain, 1);
  if (all <= grain || get_worker_info()) return part(0, all);
  const auto* const begin = static_cast<const char*>(numbers.const_data_ptr());
  const auto bytes = static_cast<int64_t>(numbers.element_size());
  auto iterator = at::TensorIteratorConfig()
                      .set_check_mem_overlap(false)
                      .check_all_same_dtype(false)
                      .resize_outputs(false)
                      .add_output(numbers)  // as what is iterated over; nothing is written
                      .build();
  const auto walk = [&](char** data, const int64_t* strides, int64_t count, int64_t runs) {
    for (int64_t run = 0; run < runs; ++run) part((data[0] + run * strides[1] - begin) / bytes, count);
  };
  iterator.for_each(walk, grain);
}

}  // namespace accelerate::data

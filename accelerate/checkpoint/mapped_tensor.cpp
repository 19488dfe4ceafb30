// SPDX-License-Identifier: Apache-2.0
#include "accelerate/checkpoint/mapped_tensor.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>

namespace accelerate::checkpoint {

at::Tensor mapped_tensor(const std::shared_ptr<archive::MappedFile>& file, uint64_t begin,
                         const std::vector<int64_t>& sizes, c10::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype);
  char* const data = file->data() + begin;
  const bool aligned = reinterpret_cast<uintptr_t>(data) % c10::elementSize(dtype) == 0;
  int64_t elements = 1;
  for (const int64_t size : sizes) elements *= size;
  if (aligned && elements > 0) {
    return at::from_blob(
        data, sizes, [file](void*) {}, options);
  }
  at::Tensor copy = at::empty(sizes, options);
  if (elements > 0) std::memcpy(copy.data_ptr(), data, copy.nbytes());
  return copy;
}

}  // namespace accelerate::checkpoint

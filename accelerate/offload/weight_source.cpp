// SPDX-License-Identifier: Apache-2.0
#include "accelerate/offload/weight_source.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>

namespace accelerate::offload {
namespace {

// Elements of a file that are read and converted at once.
constexpr int64_t kChunk = 1 << 18;

void convert_from_file(const WeightSource& source, c10::ScalarType dtype, char* to, int64_t numel) {
  const at::Tensor chunk = at::empty({std::min(numel, kChunk)}, at::TensorOptions().dtype(source.dtype));
  const size_t read_bytes = c10::elementSize(source.dtype), written_bytes = c10::elementSize(dtype);
  for (int64_t done = 0; done < numel; done += kChunk) {
    const int64_t length = std::min(numel - done, kChunk);
    const auto position = static_cast<size_t>(done);
    source.file->read(source.begin + position * read_bytes, chunk.mutable_data_ptr(),
                      static_cast<size_t>(length) * read_bytes);
    at::from_blob(to + position * written_bytes, {length}, at::TensorOptions().dtype(dtype))
        .copy_(chunk.narrow(0, 0, length));
  }
}

}  // namespace

void read_values(const WeightSource& source, c10::ScalarType dtype, void* to, size_t bytes) {
  if (bytes == 0) return;
  const at::NoGradGuard no_grad;
  if (source.file && source.dtype == dtype) {
    source.file->read(source.begin, to, bytes);
  } else if (source.file) {
    convert_from_file(source, dtype, static_cast<char*>(to), static_cast<int64_t>(bytes / c10::elementSize(dtype)));
  } else if (source.tensor.scalar_type() == dtype) {
    std::memcpy(to, source.tensor.const_data_ptr(), bytes);
  } else {
    at::from_blob(to, source.tensor.sizes(), at::TensorOptions().dtype(dtype)).copy_(source.tensor);
  }
}

}  // namespace accelerate::offload

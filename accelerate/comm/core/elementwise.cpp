// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/elementwise.hpp"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <fmt/format.h>

#include <stdexcept>

#include "accelerate/comm/core/collective_fingerprint.hpp"

namespace accelerate::comm {
namespace {

template <typename T>
void reduce_typed(T* into, const T* from, int64_t count, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean:
      for (int64_t i = 0; i < count; ++i) into[i] = static_cast<T>(into[i] + from[i]);
      return;
    case ReduceOp::product:
      for (int64_t i = 0; i < count; ++i) into[i] = static_cast<T>(into[i] * from[i]);
      return;
    case ReduceOp::max:  // a NaN on either side is kept
      for (int64_t i = 0; i < count; ++i) into[i] = into[i] >= from[i] || into[i] != into[i] ? into[i] : from[i];
      return;
    case ReduceOp::min:
      for (int64_t i = 0; i < count; ++i) into[i] = into[i] <= from[i] || into[i] != into[i] ? into[i] : from[i];
      return;
  }
}

template <typename T>
void reduce_as(void* into, const void* from, int64_t count, ReduceOp op) {
  reduce_typed(static_cast<T*>(into), static_cast<const T*>(from), count, op);
}

using Kernel = void (*)(void* into, const void* from, int64_t count, ReduceOp op);

// Returns null for a dtype without a kernel.
Kernel kernel_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
      return reduce_as<uint8_t>;
    case at::kChar:
      return reduce_as<int8_t>;
    case at::kInt:
      return reduce_as<int32_t>;
    case at::kLong:
      return reduce_as<int64_t>;
    case at::kHalf:
      return reduce_as<c10::Half>;
    case at::kBFloat16:
      return reduce_as<c10::BFloat16>;
    case at::kFloat:
      return reduce_as<float>;
    case at::kDouble:
      return reduce_as<double>;
    default:
      return nullptr;
  }
}

}  // namespace

bool has_reduction(at::ScalarType dtype) { return kernel_of(dtype) != nullptr; }

void reduce_into(void* into, const void* from, int64_t count, at::ScalarType dtype, ReduceOp op) {
  const Kernel kernel = kernel_of(dtype);
  if (kernel == nullptr) throw std::invalid_argument(fmt::format("no kernel reduces {}", dtype_name(dtype)));
  kernel(into, from, count, op);
}

}  // namespace accelerate::comm

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
T reduced(T left, T right, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean:
      return static_cast<T>(left + right);
    case ReduceOp::product:
      return static_cast<T>(left * right);
    case ReduceOp::max:  // a NaN on either side is kept
      return left >= right || left != left ? left : right;
    case ReduceOp::min:
      return left <= right || left != left ? left : right;
  }
  return left;
}

// The operation and the side are constants in each loop, so that the compiler vectorizes it.
template <typename T, ReduceOp op>
void reduce_loop(T* into, const T* from, int64_t count, Side side) {
  if (side == Side::right) {
    for (int64_t i = 0; i < count; ++i) into[i] = reduced(into[i], from[i], op);
  } else {
    for (int64_t i = 0; i < count; ++i) into[i] = reduced(from[i], into[i], op);
  }
}

template <typename T>
void reduce_as(void* into, const void* from, int64_t count, ReduceOp op, Side side) {
  auto* const to = static_cast<T*>(into);
  const auto* const term = static_cast<const T*>(from);
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean:
      return reduce_loop<T, ReduceOp::sum>(to, term, count, side);
    case ReduceOp::product:
      return reduce_loop<T, ReduceOp::product>(to, term, count, side);
    case ReduceOp::max:
      return reduce_loop<T, ReduceOp::max>(to, term, count, side);
    case ReduceOp::min:
      return reduce_loop<T, ReduceOp::min>(to, term, count, side);
  }
}

using Kernel = void (*)(void* into, const void* from, int64_t count, ReduceOp op, Side side);

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

void reduce_into(void* into, const void* from, int64_t count, at::ScalarType dtype, ReduceOp op, Side side) {
  const Kernel kernel = kernel_of(dtype);
  if (kernel == nullptr) throw std::invalid_argument(fmt::format("no kernel reduces {}", dtype_name(dtype)));
  kernel(into, from, count, op, side);
}

}  // namespace accelerate::comm

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/rows.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "accelerate/data/parallel_for_samples.hpp"

namespace accelerate::data::detail {
namespace {

// Rows are scattered: without prefetching each begins with a cache miss. A distance of 8 KB was fastest.
constexpr int64_t kAheadBytes = 8192;
constexpr int64_t kMaxReadAhead = 64;

void prefetch(const char* row, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at);
}

/// \param bytes  Bytes per row; a compile-time constant for small rows.
template <typename Bytes>
void copy_rows(const char* from, const int64_t* number, int64_t count, Bytes bytes, char* to) {
  const int64_t ahead = std::clamp<int64_t>(kAheadBytes / bytes, 1, kMaxReadAhead);
  const int64_t fetched = std::min<int64_t>(bytes, kAheadBytes);
  for (int64_t i = 0; i < std::min(ahead, count); ++i) prefetch(from + number[i] * bytes, fetched);
  for (int64_t i = 0; i < count; ++i, to += bytes) {
    if (i + ahead < count) prefetch(from + number[i + ahead] * bytes, fetched);
    std::memcpy(to, from + number[i] * bytes, static_cast<size_t>(bytes));
  }
}

template <int64_t bytes>
using FieldRows = std::integral_constant<int64_t, bytes>;

void copy_rows_of(int64_t bytes, const char* from, const int64_t* number, int64_t count, char* to) {
  switch (bytes) {
    case 1:
      return copy_rows(from, number, count, FieldRows<1>(), to);
    case 2:
      return copy_rows(from, number, count, FieldRows<2>(), to);
    case 4:
      return copy_rows(from, number, count, FieldRows<4>(), to);
    case 8:
      return copy_rows(from, number, count, FieldRows<8>(), to);
    default:
      return copy_rows(from, number, count, bytes, to);
  }
}

void gather(const at::Tensor& tensor, const at::Tensor& numbers, const at::Tensor& into) {
  const int64_t count = numbers.size(0);
  if (into.numel() == 0) return;
  const int64_t bytes = static_cast<int64_t>(into.nbytes()) / count;
  const auto* const from = static_cast<const char*>(tensor.const_data_ptr());
  const auto* const number = numbers.const_data_ptr<int64_t>();
  auto* const to = static_cast<char*>(into.mutable_data_ptr());
  const auto copy = [=](int64_t first, int64_t rows) {
    copy_rows_of(bytes, from, number + first, rows, to + first * bytes);
  };
  parallel_for_samples(numbers, kBytesOfPart / bytes, copy);
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.is_contiguous() && !tensor.is_quantized() && !tensor.is_conj() &&
         !tensor.is_neg();
}

}  // namespace

at::Tensor select(const at::Tensor& tensor, const RowChoice& rows) {
  if (!tensor.is_cpu()) return tensor.index_select(0, rows.there);
  if (!is_plain(tensor)) return tensor.index_select(0, rows.numbers);
  auto shape = tensor.sizes().vec();
  shape.front() = rows.numbers.size(0);
  auto into = rows.memory.take(shape, tensor.scalar_type(), rows.pinned);
  gather(tensor, rows.numbers, into);
  return into;
}

at::Tensor empty_rows(const at::Tensor& tensor, int64_t rows) {
  auto shape = tensor.sizes().vec();
  shape.front() = rows;
  return at::empty(shape, tensor.options().requires_grad(false));
}

bool are_equal(const at::Tensor& one, const at::Tensor& other) {
  if (one.is_same(other) || (!one.defined() && !other.defined())) return true;
  if (!one.defined() || !other.defined()) return false;
  if (one.sizes() != other.sizes() || one.scalar_type() != other.scalar_type()) return false;
  if (one.device() != other.device() || one.layout() != other.layout()) return false;
  if (at::equal(one, other)) return true;
  if (!one.is_floating_point() || one.layout() != at::kStrided) return false;
  const at::Tensor a = one.to(at::kDouble);
  const at::Tensor b = other.to(at::kDouble);
  return at::equal(a.isnan(), b.isnan()) &&
         at::equal(a.nan_to_num(0, INFINITY, -INFINITY), b.nan_to_num(0, INFINITY, -INFINITY));
}

bool put_rows(at::Tensor& into, const at::Tensor& rows, const at::Tensor& places) {
  if (rows.sizes().slice(1) != into.sizes().slice(1) || rows.scalar_type() != into.scalar_type()) return false;
  into.index_copy_(0, places.to(into.device()), rows.detach());
  return true;
}

}  // namespace accelerate::data::detail

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tree/split.hpp"

#include <ATen/ops/cat.h>

#include <algorithm>

namespace accelerate::tree {
namespace {

constexpr std::string_view kSplitOperation = "split_between_processes";

}  // namespace

Part split_part(int64_t items, int64_t rank, int64_t world_size, bool apply_padding) {
  if (items < 0) base::fail(ErrorKind::usage, {}, kSplitOperation, "{} items, must be at least 0", items);
  if (world_size < 1)
    base::fail(ErrorKind::usage, {}, kSplitOperation, "world_size is {}, must be at least 1", world_size);
  if (rank < 0 || rank >= world_size)
    base::fail(ErrorKind::usage, {}, kSplitOperation, "rank is {}, must be 0 to {} with world_size {}", rank,
               world_size - 1, world_size);
  const int64_t each = items / world_size;
  const int64_t more = items % world_size;
  Part part{.first = rank * each + std::min(rank, more), .count = each + (rank < more ? 1 : 0)};
  if (apply_padding && more > 0) part.filling = each + 1 - part.count;
  return part;
}

namespace detail {

at::Tensor take(const at::Tensor& rows, const Part& part) {
  const at::Tensor tensor = rows.dim() == 0 ? rows.reshape({1}) : rows;
  at::Tensor mine = tensor.narrow(0, part.first, part.count);
  if (part.filling == 0) return mine;
  auto shape = tensor.sizes().vec();
  shape[0] = part.filling;
  return at::cat({mine, tensor.narrow(0, tensor.size(0) - 1, 1).expand(shape)});
}

void check_lengths(int64_t first, int64_t other) {
  if (first != other)
    base::fail(ErrorKind::usage, {}, kSplitOperation, "inputs of {} and of {} items, all must have one length", first,
               other);
}

}  // namespace detail
}  // namespace accelerate::tree

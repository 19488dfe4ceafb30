// SPDX-License-Identifier: Apache-2.0
#include "accelerate/context_parallel/sequence.hpp"

#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>

#include <string_view>

#include "accelerate/base/error.hpp"
#include "accelerate/context_parallel/gather.hpp"

namespace accelerate::nn {
namespace {

int64_t sequence_dim_of(std::string_view call, const at::Tensor& tensor, int64_t dim, const comm::Group& group) {
  const int64_t number = dim < 0 ? dim + tensor.dim() : dim;
  if (number >= 0 && number < tensor.dim()) return number;
  base::fail(ErrorKind::usage, group.place(), call, "the tensor is [{}], it has no dimension {}",
             c10::Join(", ", tensor.sizes()), dim);
}

}  // namespace

at::Tensor split_sequence(const comm::Group& group, const at::Tensor& tensor, int64_t dim) {
  constexpr std::string_view call = "split_sequence";
  const int64_t number = sequence_dim_of(call, tensor, dim, group);
  if (group.size() == 1) return tensor;
  const int64_t tokens = tensor.size(number), chunks = 2 * group.size();
  if (tokens % chunks != 0) {
    base::fail(
        ErrorKind::usage, group.place(), call,
        "dimension {} of the tensor [{}] has {} tokens, must be divisible by {}, because each of the {} ranks has "
        "2 chunks; pad the sequence to {} tokens",
        number, c10::Join(", ", tensor.sizes()), tokens, chunks, group.size(), (tokens / chunks + 1) * chunks);
  }
  const int64_t chunk = tokens / chunks, rank = group.rank();
  return at::cat(
      {tensor.narrow(number, rank * chunk, chunk), tensor.narrow(number, (chunks - 1 - rank) * chunk, chunk)}, number);
}

at::Tensor merge_sequence(const comm::Group& group, const at::Tensor& part, int64_t dim) {
  constexpr std::string_view call = "merge_sequence";
  const int64_t number = sequence_dim_of(call, part, dim, group);
  if (group.size() == 1) return part;
  check_two_chunks(call, "the tensor", part, number, group);
  return in_token_order(gather_of_sequence(call, part, group), number);
}

}  // namespace accelerate::nn

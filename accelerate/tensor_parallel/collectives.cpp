// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tensor_parallel/collectives.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/movedim.h>
#include <c10/util/StringUtil.h>

#include <string>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/comm/error_context.hpp"

namespace accelerate::nn {
namespace {

constexpr std::string_view kCall = "tensor_parallel";
constexpr std::string_view kWhat = "the parts of a layer are not put together";

at::Tensor with_dim_in_front(const at::Tensor& tensor, int64_t dim) {
  return (dim == 0 ? tensor : at::movedim(tensor, dim, 0)).contiguous();
}

at::Tensor with_dim_back(const at::Tensor& tensor, int64_t dim) {
  return dim == 0 ? tensor : at::movedim(tensor, 0, dim).contiguous();
}

}  // namespace

int64_t part_size(std::string_view call, std::string_view what, int64_t size, const comm::Group& group) {
  if (size % group.size() == 0) return size / group.size();
  base::fail(ErrorKind::usage, group.place(), call, "{} is {}, must be divisible by the {} ranks of the group", what,
             size, group.size());
}

int64_t checked_dim(std::string_view call, const at::Tensor& tensor, int64_t dim, const comm::Group& group) {
  const int64_t number = dim < 0 ? dim + tensor.dim() : dim;
  if (number >= 0 && number < tensor.dim()) return number;
  base::fail(ErrorKind::usage, group.place(), call, "the tensor is [{}], it has no dimension {}",
             c10::Join(", ", tensor.sizes()), dim);
}

void wait_for(comm::Pending& pending, const comm::Group& group) {
  comm::with_operation_context(kCall, kWhat, group.place(), [&] { pending.wait(); });
}

void add_up(const at::Tensor& tensor, const comm::Group& group) {
  if (group.size() == 1) return;
  comm::with_operation_context(kCall, kWhat, group.place(), [&] { group.all_reduce(tensor); });
}

at::Tensor own_part(const at::Tensor& tensor, int64_t dim, const comm::Group& group) {
  const int64_t size = part_size(kCall, "the size of dimension " + std::to_string(dim), tensor.size(dim), group);
  return tensor.narrow(dim, group.rank() * size, size);
}

at::Tensor joined_parts(const at::Tensor& part, int64_t dim, const comm::Group& group) {
  if (group.size() == 1) return part.clone(at::MemoryFormat::Contiguous);
  const at::Tensor input = with_dim_in_front(part, dim);
  std::vector<int64_t> sizes = input.sizes().vec();
  sizes[0] *= group.size();
  const at::Tensor output = at::empty(sizes, input.options());
  auto pending = group.all_gather_async(output, input);
  wait_for(pending, group);
  return with_dim_back(output, dim);
}

PartOfSum::PartOfSum(const at::Tensor& tensor, int64_t dim, const comm::Group& group)
    : group_(group), dim_(dim), input_(with_dim_in_front(tensor, dim)) {
  std::vector<int64_t> sizes = input_.sizes().vec();
  sizes[0] = part_size(kCall, "the size of dimension " + std::to_string(dim), sizes[0], group);
  output_ = at::empty(sizes, input_.options());
  if (group.size() == 1) {
    output_.copy_(input_);
  } else {
    pending_ = group.reduce_scatter_async(output_, input_);
  }
}

at::Tensor PartOfSum::wait() {
  wait_for(pending_, group_);
  return with_dim_back(output_, dim_);
}

}  // namespace accelerate::nn

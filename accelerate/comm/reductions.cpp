// SPDX-License-Identifier: Apache-2.0
// all_reduce, reduce, reduce_scatter.
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_real.h>

#include "accelerate/comm/group_impl.hpp"
#include "accelerate/comm/reduction.hpp"

namespace accelerate::comm {
namespace {

using Passage = Reduction::Passage;

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean:
      return c10d::ReduceOp::SUM;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
    case ReduceOp::product:
      return c10d::ReduceOp::PRODUCT;
  }
  return c10d::ReduceOp::SUM;
}

Reduction plan_or_refuse(const Group::Impl& group, Operation operation, const at::Tensor& tensor, ReduceOp op) {
  if (tensor.layout() != at::kStrided) {
    group.refuse(operation, fmt::format("the tensor is {}, only dense tensors are reduced", c10::str(tensor.layout())));
  }
  const auto plan = plan_reduction(tensor.scalar_type(), op);
  if (!plan) {
    group.refuse(operation, fmt::format("the {} of {} is not defined; convert the tensor, to float32 for example",
                                        name(op), dtype_name(tensor.scalar_type())));
  }
  return *plan;
}

/// A contiguous tensor as the backend gets it; shares memory where it can.
at::Tensor to_wire(const at::Tensor& dense, const Reduction& plan) {
  if (plan.passage == Passage::same) return dense;
  if (plan.passage == Passage::convert) return dense.to(plan.dtype);
  return dense.is_complex() ? at::view_as_real(dense) : dense.view(plan.dtype);
}

Header reduction_header(Operation operation, const at::Tensor& tensor, ReduceOp op, int64_t root = -1) {
  Header header = header_of(operation, tensor);
  header.reduce = static_cast<int64_t>(op);
  header.root = root;
  return header;
}

/// Starts the reduction of a tensor into itself.
template <typename Start>
Pending::Impl start_in_place(const std::shared_ptr<Group::Impl>& group, Header header, const at::Tensor& tensor,
                             const Reduction& plan, const Start& start) {
  Link& link = group->link_of(tensor, header.operation);
  Pending::Impl pending{.group = group, .header = std::move(header), .target = tensor, .dense = tensor.contiguous()};
  pending.wire = to_wire(pending.dense, plan);
  pending.copy_back = pending.wire.const_data_ptr() != tensor.const_data_ptr();
  if (plan.passage == Passage::convert) pending.dense = pending.wire;
  pending.divide_by = plan.divide ? group->size : 1;
  group->begin(pending.header, Agreement::whole_shape, link);
  if (tensor.numel() == 0) {
    pending.finished = true;
    return pending;
  }
  const auto begun = Clock::now();
  try {
    std::vector<at::Tensor> wires{pending.wire};
    pending.work = start(*link.backend, wires, to_c10d(plan.op));
  } catch (const std::exception&) {
    group->fail_operation(pending.header, group->timeout, Clock::now() - begun);
  }
  return pending;
}

Pending::Impl start_all_reduce(const std::shared_ptr<Group::Impl>& group, const at::Tensor& tensor, ReduceOp op,
                               bool asynchronous) {
  const at::NoGradGuard no_grad;
  const Reduction plan = plan_or_refuse(*group, Operation::all_reduce, tensor, op);
  if (group->single()) return {.finished = true};
  return start_in_place(group, reduction_header(Operation::all_reduce, tensor, op), tensor, plan,
                        [&](c10d::Backend& backend, std::vector<at::Tensor>& wires, const c10d::ReduceOp& wire_op) {
                          return backend.allreduce(
                              wires, {.reduceOp = wire_op, .timeout = group->timeout, .asyncOp = asynchronous});
                        });
}

}  // namespace

void Group::all_reduce(const at::Tensor& tensor, ReduceOp op) const {
  start_all_reduce(impl_, tensor, op, false).wait(impl_->timeout);
}

Pending Group::all_reduce_async(const at::Tensor& tensor, ReduceOp op, Start start) const {
  return Pending(
      std::make_shared<Pending::Impl>(start_all_reduce(impl_, tensor, op, start == Start::now || tensor.is_cuda())));
}

void Group::reduce(const at::Tensor& tensor, ReduceOp op, int64_t root) const {
  const at::NoGradGuard no_grad;
  impl_->check_rank(Operation::reduce, "root", root);
  const Reduction plan = plan_or_refuse(*impl_, Operation::reduce, tensor, op);
  if (impl_->single()) return;
  start_in_place(impl_, reduction_header(Operation::reduce, tensor, op, root), tensor, plan,
                 [&](c10d::Backend& backend, std::vector<at::Tensor>& wires, const c10d::ReduceOp& wire_op) {
                   return backend.reduce(
                       wires, {.reduceOp = wire_op, .rootRank = root, .timeout = impl_->timeout, .asyncOp = false});
                 })
      .wait(impl_->timeout);
}

Pending Group::reduce_scatter_async(const at::Tensor& output, const at::Tensor& input, ReduceOp op) const {
  const at::NoGradGuard no_grad;
  const Reduction plan = plan_or_refuse(*impl_, Operation::reduce_scatter, input, op);
  impl_->check_rows(Operation::reduce_scatter, input, output);
  if (impl_->single()) {
    output.copy_(input);
    return {};
  }
  Link& link = impl_->link_of(input, Operation::reduce_scatter);
  auto pending = std::make_shared<Pending::Impl>(Pending::Impl{
      .group = impl_, .header = reduction_header(Operation::reduce_scatter, input, op), .target = output});
  pending->divide_by = plan.divide ? impl_->size : 1;
  impl_->begin(pending->header, Agreement::whole_shape, link);
  if (input.numel() == 0) return {};
  at::Tensor from = to_wire(input.contiguous(), plan);
  const bool convert = plan.passage == Passage::convert;
  pending->dense = convert ? at::empty(output.sizes(), output.options().dtype(plan.dtype)) : output.contiguous();
  pending->wire = convert ? pending->dense : to_wire(pending->dense, plan);
  pending->copy_back = pending->dense.const_data_ptr() != output.const_data_ptr();
  const auto begun = Clock::now();
  try {
    pending->work = link.backend->_reduce_scatter_base(pending->wire, from,
                                                       {.reduceOp = to_c10d(plan.op), .timeout = impl_->timeout});
  } catch (const std::exception&) {
    impl_->fail_operation(pending->header, impl_->timeout, Clock::now() - begun);
  }
  pending->input = std::move(from);
  return Pending(std::move(pending));
}

at::Tensor Group::reduce_scatter(const at::Tensor& input, ReduceOp op) const {
  if (input.dim() == 0 || input.size(0) % impl_->size != 0) {
    impl_->refuse(Operation::reduce_scatter,
                  fmt::format("the input is {}; its first dimension must be a multiple of the "
                              "group's size, {}",
                              describe(header_of(Operation::reduce_scatter, input)), impl_->size));
  }
  auto sizes = input.sizes().vec();
  sizes[0] /= impl_->size;
  at::Tensor output = at::empty(sizes, input.options());
  reduce_scatter_async(output, input, op).wait();
  return output;
}

}  // namespace accelerate::comm

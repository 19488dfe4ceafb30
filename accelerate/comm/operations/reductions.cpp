// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/operations/reductions.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/view_as_real.h>

#include "accelerate/base/version_counter.hpp"
#include "accelerate/comm/core/bytes.hpp"
#include "accelerate/comm/core/wire_format.hpp"

namespace accelerate::comm {
namespace {

using Passage = WireFormat::Passage;

WireFormat wire_format_or_refuse(const GroupCore& group, Operation operation, const at::Tensor& tensor, ReduceOp op) {
  if (tensor.layout() != at::kStrided) {
    group.refuse(operation, fmt::format("the tensor is {}, only dense tensors are reduced", c10::str(tensor.layout())));
  }
  const auto format = wire_format_of(tensor.scalar_type(), op);
  if (!format) {
    group.refuse(operation, fmt::format("the {} of {} is not defined; convert the tensor, to float32 for example",
                                        reduce_op_name(op), dtype_name(tensor.scalar_type())));
  }
  return *format;
}

/// Returns a contiguous tensor in the backend's format; shares memory if possible.
at::Tensor to_wire(const at::Tensor& dense, const WireFormat& format) {
  if (format.passage == Passage::same) return dense;
  if (format.passage == Passage::convert) return dense.to(format.dtype);
  return dense.is_complex() ? at::view_as_real(dense) : dense.view(format.dtype);
}

/// Starts an in-place reduction.
template <typename Begin>
PendingOperation start_in_place(const GroupPtr& group, CollectiveFingerprint signature, const at::Tensor& tensor,
                                const WireFormat& format, const Begin& begin_operation) {
  Connection& connection = group->connection_of(tensor, signature.operation);
  PendingOperation pending{
      .group = group, .signature = std::move(signature), .target = tensor, .dense = dense_of(tensor)};
  pending.wire = to_wire(pending.dense, format);
  pending.copy_back = pending.wire.const_data_ptr() != tensor.const_data_ptr();
  if (format.passage == Passage::convert) pending.dense = pending.wire;
  pending.divide_by = format.divide ? group->size : 1;
  group->begin(pending.signature, Agreement::whole_shape, connection);
  if (tensor.numel() == 0) {
    pending.finished = true;
    return pending;
  }
  const auto begun = Clock::now();
  if (!pending.copy_back) base::count_write(tensor);
  try {
    std::vector<at::Tensor> wires{pending.wire};
    pending.work = begin_operation(*connection.backend, wires, to_c10d(format.op));
  } catch (const std::exception&) {
    group->fail_operation(pending.signature, group->timeout, Clock::now() - begun);
  }
  return pending;
}

PendingOperation start_all_reduce(const GroupPtr& group, const at::Tensor& tensor, ReduceOp op, bool asynchronous) {
  const at::NoGradGuard no_grad;
  const WireFormat format = wire_format_or_refuse(*group, Operation::all_reduce, tensor, op);
  if (group->single()) return {.finished = true};
  return start_in_place(group, fingerprint_of(Operation::all_reduce, tensor, op), tensor, format,
                        [&](c10d::Backend& backend, std::vector<at::Tensor>& wires, const c10d::ReduceOp& wire_op) {
                          return backend.allreduce(
                              wires, {.reduceOp = wire_op, .timeout = group->timeout, .asyncOp = asynchronous});
                        });
}

}  // namespace

void all_reduce(const GroupPtr& group, const at::Tensor& tensor, ReduceOp op) {
  start_all_reduce(group, tensor, op, false).wait(group->timeout);
}

PendingPtr all_reduce_async(const GroupPtr& group, const at::Tensor& tensor, ReduceOp op, Execution execution) {
  return shared_by_handles(start_all_reduce(group, tensor, op, execution == Execution::eager || !tensor.is_cpu()));
}

void reduce(const GroupPtr& group, const at::Tensor& tensor, ReduceOp op, int64_t root) {
  const at::NoGradGuard no_grad;
  group->check_rank(Operation::reduce, "root", root);
  const WireFormat format = wire_format_or_refuse(*group, Operation::reduce, tensor, op);
  if (group->single()) return;
  start_in_place(group, fingerprint_of(Operation::reduce, tensor, op, root), tensor, format,
                 [&](c10d::Backend& backend, std::vector<at::Tensor>& wires, const c10d::ReduceOp& wire_op) {
                   return backend.reduce(
                       wires, {.reduceOp = wire_op, .rootRank = root, .timeout = group->timeout, .asyncOp = false});
                 })
      .wait(group->timeout);
}

/// Reduces the whole tensor; each rank then keeps its rows.
PendingPtr reduce_whole(PendingPtr pending, const at::Tensor& input, const WireFormat& format, Connection& connection) {
  const GroupCore& group = *pending->group;
  const at::Tensor dense = dense_of(input);
  const bool convert = format.passage == Passage::convert;
  const at::Tensor whole = convert ? dense : dense.clone();
  std::vector<at::Tensor> wires{to_wire(whole, format)};
  const int64_t rows = pending->target.size(0);
  pending->wire = wires[0].narrow(0, group.rank * rows, rows);
  pending->dense = convert ? pending->wire : whole.narrow(0, group.rank * rows, rows);
  pending->copy_back = true;
  pending->work = connection.backend->allreduce(wires, {.reduceOp = to_c10d(format.op), .timeout = group.timeout});
  return pending;
}

PendingPtr reduce_scatter_async(const GroupPtr& group, const at::Tensor& output, const at::Tensor& input, ReduceOp op) {
  const at::NoGradGuard no_grad;
  const WireFormat format = wire_format_or_refuse(*group, Operation::reduce_scatter, input, op);
  group->check_rows(Operation::reduce_scatter, input, output);
  if (group->single()) {
    output.copy_(input);
    return {};
  }
  Connection& connection = group->connection_of(input, Operation::reduce_scatter);
  auto pending = std::make_shared<PendingOperation>(PendingOperation{
      .group = group, .signature = fingerprint_of(Operation::reduce_scatter, input, op), .target = output});
  pending->divide_by = format.divide ? group->size : 1;
  group->begin(pending->signature, Agreement::whole_shape, connection);
  if (input.numel() == 0) return {};
  const auto begun = Clock::now();
  if (!connection.reduces_rows()) {
    try {
      return reduce_whole(pending, input, format, connection);
    } catch (const std::exception&) {
      group->fail_operation(pending->signature, group->timeout, Clock::now() - begun);
    }
  }
  at::Tensor from = to_wire(dense_of(input), format);
  const bool convert = format.passage == Passage::convert;
  pending->dense = convert ? at::empty(output.sizes(), output.options().dtype(format.dtype)) : dense_of(output);
  pending->wire = convert ? pending->dense : to_wire(pending->dense, format);
  pending->copy_back = pending->dense.const_data_ptr() != output.const_data_ptr();
  // As with NCCL, the output may be this rank's rows of the input, but CPU backends read memory after writing it.
  if (from.is_cpu() && from.is_alias_of(pending->wire)) from = from.clone();
  if (!pending->copy_back) base::count_write(output);
  try {
    pending->work = connection.backend->_reduce_scatter_base(
        pending->wire, from, {.reduceOp = to_c10d(format.op), .timeout = group->timeout});
  } catch (const std::exception&) {
    group->fail_operation(pending->signature, group->timeout, Clock::now() - begun);
  }
  pending->input = std::move(from);
  return pending;
}

at::Tensor reduce_scatter(const GroupPtr& group, const at::Tensor& input, ReduceOp op) {
  if (input.dim() == 0 || input.size(0) % group->size != 0) {
    group->refuse(Operation::reduce_scatter,
                  fmt::format("the input is {}; its first dimension must be a multiple of the "
                              "group's size, {}",
                              describe_fingerprint(fingerprint_of(Operation::reduce_scatter, input)), group->size));
  }
  auto sizes = input.sizes().vec();
  sizes[0] /= group->size;
  at::Tensor output = at::empty(sizes, input.options());
  if (const auto pending = reduce_scatter_async(group, output, input, op)) pending->wait(group->timeout);
  return output;
}

}  // namespace accelerate::comm

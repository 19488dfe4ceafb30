// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/operations/data_movement.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <numeric>

#include "accelerate/base/version_counter.hpp"
#include "accelerate/comm/core/bytes.hpp"

namespace accelerate::comm {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor empty_of(const CollectiveFingerprint& signature, at::Device device) {
  return at::empty(signature.shape, at::TensorOptions().dtype(signature.dtype).device(device));
}

/// A 0-dim tensor counts as [1].
at::Tensor with_rows(const at::Tensor& tensor) { return tensor.dim() == 0 ? tensor.reshape({1}) : tensor; }

int64_t contribution_bytes(const CollectiveFingerprint& signature) {
  const auto count = std::accumulate(signature.shape.begin(), signature.shape.end(), int64_t{1}, std::multiplies<>());
  return count * static_cast<int64_t>(c10::elementSize(*signature.dtype));
}

PendingOperation start_broadcast(const GroupPtr& group, const at::Tensor& tensor, int64_t root, bool asynchronous) {
  const at::NoGradGuard no_grad;
  group->check_rank(Operation::broadcast, "root", root);
  if (group->single()) return {.finished = true};
  Connection& connection = group->connection_of(tensor, Operation::broadcast);
  PendingOperation pending{
      .group = group, .signature = fingerprint_of(Operation::broadcast, tensor, std::nullopt, root), .target = tensor};
  group->begin(pending.signature, Agreement::whole_shape, connection);
  pending.finished = tensor.numel() == 0;
  if (pending.finished) return pending;
  pending.dense = dense_of(tensor);
  pending.wire = as_bytes(pending.dense);
  pending.copy_back = pending.wire.const_data_ptr() != tensor.const_data_ptr();
  if (!pending.copy_back && group->rank != root) base::count_write(tensor);
  const auto begun = Clock::now();
  try {
    Tensors wires{pending.wire};
    pending.work =
        connection.backend->broadcast(wires, {.rootRank = root, .timeout = group->timeout, .asyncOp = asynchronous});
  } catch (const std::exception&) {
    group->fail_operation(pending.signature, group->timeout, Clock::now() - begun);
  }
  return pending;
}

/// Returns every rank's tensor as a view of one buffer. Tensors of different lengths are padded to the longest for the
/// transfer.
Tensors gather_rows(GroupCore& group, const at::Tensor& tensor, const CollectiveFingerprint& mine,
                    const std::vector<CollectiveFingerprint>& signatures) {
  int64_t longest = 0;
  for (const auto& signature : signatures) longest = std::max(longest, signature.shape[0]);
  auto padded = mine;
  padded.shape[0] = longest;
  at::Tensor input = dense_of(tensor);
  if (input.size(0) != longest) {
    input = empty_of(padded, tensor.device());
    input.narrow(0, 0, tensor.size(0)).copy_(tensor);
    input.narrow(0, tensor.size(0), longest - tensor.size(0)).zero_();
  }
  padded.shape[0] = longest * group.size;
  const at::Tensor output = empty_of(padded, tensor.device());
  if (output.numel() > 0) {
    at::Tensor from = as_bytes(input);
    at::Tensor to = as_bytes(output);
    group.run(group.connection_of(tensor, mine.operation), mine, !tensor.is_cpu(), [&](c10d::Backend& backend) {
      return backend._allgather_base(to, from, {.timeout = group.timeout, .asyncOp = false});
    });
  }
  Tensors rows;
  for (size_t r = 0; r < signatures.size(); ++r) {
    rows.push_back(output.narrow(0, static_cast<int64_t>(r) * longest, signatures[r].shape[0]));
  }
  return rows;
}

/// Exchanges bytes: `pieces[r]` is sent to rank r. Returns the tensors described by `expected`.
Tensors exchange_pieces(GroupCore& group, const CollectiveFingerprint& mine, const Tensors& pieces,
                        const std::vector<CollectiveFingerprint>& expected, at::Device device) {
  std::vector<int64_t> in_bytes;
  std::vector<int64_t> out_bytes;
  Tensors flat;
  for (const auto& piece : pieces) {
    flat.push_back(as_bytes(dense_of(piece)));
    in_bytes.push_back(flat.back().numel());
  }
  for (const auto& signature : expected) out_bytes.push_back(signature.dtype ? contribution_bytes(signature) : 0);
  at::Tensor input = at::cat(flat);
  const auto options = at::TensorOptions().dtype(at::kByte).device(device);
  at::Tensor output = at::empty({std::accumulate(out_bytes.begin(), out_bytes.end(), int64_t{0})}, options);
  group.run(group.connection_of(output, mine.operation), mine, !device.is_cpu(), [&](c10d::Backend& backend) {
    auto into = out_bytes;  // gloo moves the lists away
    auto out_of = in_bytes;
    return backend.alltoall_base(output, input, into, out_of, {.timeout = group.timeout, .asyncOp = false});
  });
  Tensors received;
  int64_t at_byte = 0;
  for (size_t r = 0; r < expected.size(); ++r) {
    if (!expected[r].dtype) continue;
    const at::Tensor bytes = output.narrow(0, at_byte, out_bytes[r]);
    at_byte += out_bytes[r];
    at::Tensor tensor = empty_of(expected[r], device);
    if (tensor.numel() > 0) as_bytes(tensor).copy_(bytes);  // a copy: a view could be misaligned for its dtype
    received.push_back(std::move(tensor));
  }
  return received;
}

/// Sends one signature to each rank. Returns the signatures of the tensors that this rank will receive.
std::vector<CollectiveFingerprint> exchange_fingerprints(GroupCore& group, const CollectiveFingerprint& mine,
                                                         const std::vector<CollectiveFingerprint>& sent) {
  at::Tensor input = at::empty({group.size, static_cast<int64_t>(CollectiveFingerprint::kWords)}, at::kLong);
  at::Tensor output = at::empty_like(input);
  for (size_t r = 0; r < sent.size(); ++r) {
    const auto words = encode(sent[r]);
    std::copy(words.begin(), words.end(), input.mutable_data_ptr<int64_t>() + r * CollectiveFingerprint::kWords);
  }
  std::vector<int64_t> equal;
  group.run(*group.cpu, mine, false, [&](c10d::Backend& backend) {
    return backend.alltoall_base(output, input, equal, equal, {.timeout = group.timeout, .asyncOp = false});
  });
  std::vector<CollectiveFingerprint> received;
  for (int64_t r = 0; r < group.size; ++r) {
    received.push_back(
        decode({output.const_data_ptr<int64_t>() + static_cast<size_t>(r) * CollectiveFingerprint::kWords,
                CollectiveFingerprint::kWords}));
  }
  return received;
}

void check_pieces(const GroupCore& group, Operation operation, const Tensors& tensors) {
  if (static_cast<int64_t>(tensors.size()) != group.size) {
    group.refuse(operation, fmt::format("there are {} tensors, must be one per rank, {}", tensors.size(), group.size));
  }
  for (const auto& tensor : tensors) {
    group.check_dimensions(operation, tensor.sizes().size());
    group.check_dense(operation, tensor);
    if (tensor.device() == tensors.front().device()) continue;
    group.refuse(operation, fmt::format("one tensor is on {}, another on {}; they must be on one device",
                                        tensors.front().device().str(), tensor.device().str()));
  }
}

}  // namespace

void broadcast(const GroupPtr& group, const at::Tensor& tensor, int64_t root) {
  start_broadcast(group, tensor, root, false).wait(group->timeout);
}

PendingPtr broadcast_async(const GroupPtr& group, const at::Tensor& tensor, int64_t root) {
  return shared_by_handles(start_broadcast(group, tensor, root, true));
}

std::vector<at::Tensor> all_gather_list(const GroupPtr& group, const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = with_rows(tensor);
  if (group->single()) return {rows.detach().clone()};
  static_cast<void>(group->connection_of(rows, Operation::all_gather));  // throws before anything is sent
  CollectiveFingerprint signature = fingerprint_of(Operation::all_gather, rows);
  const auto signatures = group->begin_with_fingerprints(signature, Agreement::all_but_first);
  return gather_rows(*group, rows, signature, signatures);
}

at::Tensor all_gather(const GroupPtr& group, const at::Tensor& tensor) {
  const auto list = all_gather_list(group, tensor);
  const at::NoGradGuard no_grad;
  return list.size() == 1 ? list.front() : at::cat(list);
}

PendingPtr all_gather_async(const GroupPtr& group, const at::Tensor& output, const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  group->check_rows(Operation::all_gather, output, input);
  if (group->single()) {
    output.copy_(input.reshape(output.sizes()));
    return {};
  }
  Connection& connection = group->connection_of(input, Operation::all_gather);
  auto pending = std::make_shared<PendingOperation>(
      PendingOperation{.group = group, .signature = fingerprint_of(Operation::all_gather, input), .target = output});
  pending->signature.into_given = true;
  group->begin(pending->signature, Agreement::whole_shape, connection);
  if (input.numel() == 0) return {};
  pending->dense = dense_of(output);
  pending->wire = as_bytes(pending->dense);
  pending->copy_back = pending->wire.const_data_ptr() != output.const_data_ptr();
  pending->input = as_bytes(dense_of(input));
  if (!pending->copy_back) base::count_write(output);
  const auto begun = Clock::now();
  try {
    pending->work = connection.backend->_allgather_base(pending->wire, pending->input, {.timeout = group->timeout});
  } catch (const std::exception&) {
    group->fail_operation(pending->signature, group->timeout, Clock::now() - begun);
  }
  return pending;
}

std::vector<at::Tensor> gather(const GroupPtr& group, const at::Tensor& tensor, int64_t root) {
  const at::NoGradGuard no_grad;
  group->check_rank(Operation::gather, "root", root);
  const at::Tensor rows = with_rows(tensor);
  if (group->single()) return {rows.detach().clone()};
  static_cast<void>(group->connection_of(rows, Operation::gather));
  CollectiveFingerprint signature = fingerprint_of(Operation::gather, rows);
  signature.root = root;
  auto signatures = group->begin_with_fingerprints(signature, Agreement::all_but_first);
  Tensors pieces(static_cast<size_t>(group->size), rows.narrow(0, 0, 0));
  pieces[static_cast<size_t>(root)] = rows;
  if (group->rank != root) {
    for (auto& expected : signatures) expected.dtype.reset();
  }
  return exchange_pieces(*group, signature, pieces, signatures, rows.device());
}

at::Tensor scatter(const GroupPtr& group, const std::vector<at::Tensor>& tensors, int64_t root) {
  const at::NoGradGuard no_grad;
  group->check_rank(Operation::scatter, "root", root);
  const bool sends = group->rank == root;
  if (sends) check_pieces(*group, Operation::scatter, tensors);
  if (group->single()) return tensors.front().detach().clone();
  CollectiveFingerprint signature{.operation = Operation::scatter, .root = root};
  group->begin(signature, Agreement::operation_only, *group->cpu);
  std::vector<CollectiveFingerprint> sent(static_cast<size_t>(group->size), signature);
  if (sends)
    std::transform(tensors.begin(), tensors.end(), sent.begin(),
                   [](const at::Tensor& tensor) { return fingerprint_of(Operation::scatter, tensor); });
  auto received = exchange_fingerprints(*group, signature, sent);
  for (int64_t r = 0; r < group->size; ++r) {
    if (r != root) received[static_cast<size_t>(r)].dtype.reset();
  }
  const bool on_cpu = received[static_cast<size_t>(root)].device == at::kCPU;
  if (!on_cpu && !group->device) {
    group->refuse(Operation::scatter,
                  fmt::format("rank {}'s tensors are not on the CPU, this group ({}) carries CPU tensors",
                              group->job_ranks.at(static_cast<size_t>(root)), group->backend_name));
  }
  const at::Device device = on_cpu ? at::Device(at::kCPU) : *group->device;
  const Tensors pieces = sends ? tensors : Tensors(static_cast<size_t>(group->size), at::empty({0}, device));
  return exchange_pieces(*group, signature, pieces, received, device).front();
}

std::vector<at::Tensor> all_to_all(const GroupPtr& group, const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  check_pieces(*group, Operation::all_to_all, tensors);
  if (group->single()) return {tensors.front().detach().clone()};
  CollectiveFingerprint signature{.operation = Operation::all_to_all};
  group->begin(signature, Agreement::operation_only, *group->cpu);
  std::vector<CollectiveFingerprint> sent;
  for (const auto& tensor : tensors) sent.push_back(fingerprint_of(Operation::all_to_all, tensor));
  const auto expected = exchange_fingerprints(*group, signature, sent);
  return exchange_pieces(*group, signature, tensors, expected, tensors.front().device());
}

}  // namespace accelerate::comm

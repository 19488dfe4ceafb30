// SPDX-License-Identifier: Apache-2.0
// What moves tensors without changing them. Bytes travel, so that any dtype does.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <numeric>

#include "accelerate/comm/bytes.hpp"
#include "accelerate/comm/group_impl.hpp"

namespace accelerate::comm {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor empty_of(const Header& header, at::Device device) {
  return at::empty(header.shape, at::TensorOptions().dtype(*header.dtype).device(device));
}

/// A scalar counts as [1].
at::Tensor with_rows(const at::Tensor& tensor) { return tensor.dim() == 0 ? tensor.reshape({1}) : tensor; }

int64_t bytes_of(const Header& header) {
  const auto count = std::accumulate(header.shape.begin(), header.shape.end(), int64_t{1}, std::multiplies<>());
  return count * static_cast<int64_t>(c10::elementSize(*header.dtype));
}

Pending::Impl start_broadcast(const std::shared_ptr<Group::Impl>& group, const at::Tensor& tensor, int64_t root,
                              bool asynchronous) {
  const at::NoGradGuard no_grad;
  group->check_rank(Operation::broadcast, "root", root);
  if (group->single()) return {.finished = true};
  Link& link = group->link_of(tensor, Operation::broadcast);
  Pending::Impl pending{.group = group, .header = header_of(Operation::broadcast, tensor), .target = tensor};
  pending.header.root = root;
  group->begin(pending.header, Agreement::whole_shape, link);
  pending.finished = tensor.numel() == 0;
  if (pending.finished) return pending;
  pending.dense = tensor.contiguous();
  pending.wire = as_bytes(pending.dense);
  pending.copy_back = pending.wire.const_data_ptr() != tensor.const_data_ptr();
  const auto begun = Clock::now();
  try {
    Tensors wires{pending.wire};
    pending.work =
        link.backend->broadcast(wires, {.rootRank = root, .timeout = group->timeout, .asyncOp = asynchronous});
  } catch (const std::exception&) {
    group->fail_operation(pending.header, group->timeout, Clock::now() - begun);
  }
  return pending;
}

/// Every rank's tensor as a view of one buffer; ragged ones travel padded to the longest.
Tensors gather_rows(Group::Impl& group, const at::Tensor& tensor, const Header& mine,
                    const std::vector<Header>& headers) {
  int64_t longest = 0;
  for (const auto& header : headers) longest = std::max(longest, header.shape[0]);
  auto padded = mine;
  padded.shape[0] = longest;
  at::Tensor input = tensor.contiguous();
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
    group.run(group.link_of(tensor, mine.operation), mine, tensor.is_cuda(), [&](c10d::Backend& backend) {
      return backend._allgather_base(to, from, {.timeout = group.timeout, .asyncOp = false});
    });
  }
  Tensors rows;
  for (size_t r = 0; r < headers.size(); ++r) {
    rows.push_back(output.narrow(0, static_cast<int64_t>(r) * longest, headers[r].shape[0]));
  }
  return rows;
}

/// One exchange of bytes: `pieces[r]` goes to rank r, the tensors that `expected` describes come back.
Tensors exchange_pieces(Group::Impl& group, const Header& mine, const Tensors& pieces,
                        const std::vector<Header>& expected, at::Device device) {
  std::vector<int64_t> in_bytes;
  std::vector<int64_t> out_bytes;
  Tensors flat;
  for (const auto& piece : pieces) {
    flat.push_back(as_bytes(piece.contiguous()));
    in_bytes.push_back(flat.back().numel());
  }
  for (const auto& header : expected) out_bytes.push_back(header.dtype ? bytes_of(header) : 0);
  at::Tensor input = at::cat(flat);
  const auto options = at::TensorOptions().dtype(at::kByte).device(device);
  at::Tensor output = at::empty({std::accumulate(out_bytes.begin(), out_bytes.end(), int64_t{0})}, options);
  group.run(group.link_of(output, mine.operation), mine, device.is_cuda(), [&](c10d::Backend& backend) {
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

/// P headers to P ranks: what each will receive.
std::vector<Header> exchange_headers_of(Group::Impl& group, const Header& mine, const std::vector<Header>& sent) {
  at::Tensor input = at::empty({group.size, static_cast<int64_t>(Header::kWords)}, at::kLong);
  at::Tensor output = at::empty_like(input);
  for (size_t r = 0; r < sent.size(); ++r) {
    const auto words = encode(sent[r]);
    std::copy(words.begin(), words.end(), input.mutable_data_ptr<int64_t>() + r * Header::kWords);
  }
  std::vector<int64_t> equal;
  group.run(*group.cpu, mine, false, [&](c10d::Backend& backend) {
    return backend.alltoall_base(output, input, equal, equal, {.timeout = group.timeout, .asyncOp = false});
  });
  std::vector<Header> received;
  for (int64_t r = 0; r < group.size; ++r) {
    received.push_back(
        decode({output.const_data_ptr<int64_t>() + static_cast<size_t>(r) * Header::kWords, Header::kWords}));
  }
  return received;
}

void check_pieces(const Group::Impl& group, Operation operation, const Tensors& tensors) {
  if (static_cast<int64_t>(tensors.size()) != group.size) {
    group.refuse(operation, fmt::format("there are {} tensors, must be one per rank, {}", tensors.size(), group.size));
  }
  for (const auto& tensor : tensors) {
    if (tensor.device() == tensors.front().device()) continue;
    group.refuse(operation, fmt::format("one tensor is on {}, another on {}; they must be on one device",
                                        tensors.front().device().str(), tensor.device().str()));
  }
}

}  // namespace

void Group::broadcast(const at::Tensor& tensor, int64_t root) const {
  start_broadcast(impl_, tensor, root, false).wait(impl_->timeout);
}

Pending Group::broadcast_async(const at::Tensor& tensor, int64_t root) const {
  return Pending(std::make_shared<Pending::Impl>(start_broadcast(impl_, tensor, root, true)));
}

std::vector<at::Tensor> Group::all_gather_list(const at::Tensor& tensor) const {
  const at::NoGradGuard no_grad;
  const at::Tensor rows = with_rows(tensor);
  if (impl_->single()) return {rows};
  Header header = header_of(Operation::all_gather, rows);
  const auto headers = impl_->begin_with_headers(header, Agreement::all_but_first);
  return gather_rows(*impl_, rows, header, headers);
}

at::Tensor Group::all_gather(const at::Tensor& tensor) const {
  const auto list = all_gather_list(tensor);
  const at::NoGradGuard no_grad;
  return list.size() == 1 ? list.front() : at::cat(list);
}

Pending Group::all_gather_async(const at::Tensor& output, const at::Tensor& input) const {
  const at::NoGradGuard no_grad;
  impl_->check_rows(Operation::all_gather, output, input);
  if (impl_->single()) {
    output.copy_(input.reshape(output.sizes()));
    return {};
  }
  Link& link = impl_->link_of(input, Operation::all_gather);
  auto pending = std::make_shared<Pending::Impl>(
      Pending::Impl{.group = impl_, .header = header_of(Operation::all_gather, input), .target = output});
  impl_->begin(pending->header, Agreement::whole_shape, link);
  if (input.numel() == 0) return {};
  pending->dense = output.contiguous();
  pending->wire = as_bytes(pending->dense);
  pending->copy_back = pending->wire.const_data_ptr() != output.const_data_ptr();
  pending->input = as_bytes(input.contiguous());
  const auto begun = Clock::now();
  try {
    pending->work = link.backend->_allgather_base(pending->wire, pending->input, {.timeout = impl_->timeout});
  } catch (const std::exception&) {
    impl_->fail_operation(pending->header, impl_->timeout, Clock::now() - begun);
  }
  return Pending(std::move(pending));
}

std::vector<at::Tensor> Group::gather(const at::Tensor& tensor, int64_t root) const {
  const at::NoGradGuard no_grad;
  impl_->check_rank(Operation::gather, "root", root);
  const at::Tensor rows = with_rows(tensor);
  if (impl_->single()) return {rows};
  Header header = header_of(Operation::gather, rows);
  header.root = root;
  auto headers = impl_->begin_with_headers(header, Agreement::all_but_first);
  Tensors pieces(static_cast<size_t>(impl_->size), rows.narrow(0, 0, 0));
  pieces[static_cast<size_t>(root)] = rows;
  if (impl_->rank != root) {
    for (auto& expected : headers) expected.dtype.reset();
  }
  return exchange_pieces(*impl_, header, pieces, headers, rows.device());
}

at::Tensor Group::scatter(const std::vector<at::Tensor>& tensors, int64_t root) const {
  const at::NoGradGuard no_grad;
  impl_->check_rank(Operation::scatter, "root", root);
  const bool sends = impl_->rank == root;
  if (sends) check_pieces(*impl_, Operation::scatter, tensors);
  if (impl_->single()) return tensors.front();
  Header header{.operation = Operation::scatter, .root = root};
  impl_->begin(header, Agreement::operation_only, *impl_->cpu);
  std::vector<Header> sent(static_cast<size_t>(impl_->size), header);
  if (sends)
    std::transform(tensors.begin(), tensors.end(), sent.begin(),
                   [](const at::Tensor& tensor) { return header_of(Operation::scatter, tensor); });
  auto received = exchange_headers_of(*impl_, header, sent);
  for (int64_t r = 0; r < impl_->size; ++r) {
    if (r != root) received[static_cast<size_t>(r)].dtype.reset();
  }
  const at::Device device = received[static_cast<size_t>(root)].cuda ? *impl_->device : at::Device(at::kCPU);
  const Tensors pieces = sends ? tensors : Tensors(static_cast<size_t>(impl_->size), at::empty({0}, device));
  return exchange_pieces(*impl_, header, pieces, received, device).front();
}

std::vector<at::Tensor> Group::all_to_all(const std::vector<at::Tensor>& tensors) const {
  const at::NoGradGuard no_grad;
  check_pieces(*impl_, Operation::all_to_all, tensors);
  if (impl_->single()) return tensors;
  Header header{.operation = Operation::all_to_all};
  impl_->begin(header, Agreement::operation_only, *impl_->cpu);
  std::vector<Header> sent;
  for (const auto& tensor : tensors) sent.push_back(header_of(Operation::all_to_all, tensor));
  const auto expected = exchange_headers_of(*impl_, header, sent);
  return exchange_pieces(*impl_, header, tensors, expected, tensors.front().device());
}

}  // namespace accelerate::comm

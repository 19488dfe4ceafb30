// SPDX-License-Identifier: Apache-2.0
// send and recv, and objects as bytes.
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <cstring>

#include "accelerate/comm/bytes.hpp"
#include "accelerate/comm/group_impl.hpp"

namespace accelerate::comm {
namespace {

at::Tensor tensor_of(std::string_view bytes) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::string string_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.numel())};
}

std::vector<std::string> strings_of(const std::vector<at::Tensor>& tensors) {
  std::vector<std::string> strings;
  strings.reserve(tensors.size());
  for (const auto& tensor : tensors) strings.push_back(string_of(tensor));
  return strings;
}

void check_message(const Group::Impl& group, Operation operation, std::string_view what, int64_t peer, int64_t tag) {
  group.check_rank(operation, what, peer);
  if (peer == group.rank) group.refuse(operation, fmt::format("{} is {}, this rank itself", what, peer));
  if (tag < 0 || tag > kLargestTag) {
    group.refuse(operation, fmt::format("tag is {}, must be 0 to {}", tag, kLargestTag));
  }
}

/// Debug: the receiver compares what is sent before it comes.
void send_header(Group::Impl& group, const Header& header, int64_t to, int64_t tag) {
  std::vector<at::Tensor> wires{tensor_of(header)};
  group.run(*group.cpu, header, false,
            [&](c10d::Backend& backend) { return backend.send(wires, static_cast<int>(to), static_cast<int>(tag)); });
}

void check_header(Group::Impl& group, const Header& mine, int64_t from, int64_t tag) {
  std::vector<at::Tensor> wires{tensor_of(mine)};
  group.run(*group.cpu, mine, false,
            [&](c10d::Backend& backend) { return backend.recv(wires, static_cast<int>(from), static_cast<int>(tag)); });
  const Header theirs = decode({wires[0].const_data_ptr<int64_t>(), Header::kWords});
  if (theirs.dtype == mine.dtype && theirs.shape == mine.shape) return;
  throw Error(ErrorKind::peer, group.place, name_of(mine.operation),
              fmt::format("this rank expects {}, rank {} sends {}; they must be equal.", describe(mine),
                          group.labels.at(static_cast<size_t>(from)), describe(theirs)));
}

}  // namespace

void Group::send(const at::Tensor& tensor, int64_t to, int64_t tag) const {
  const at::NoGradGuard no_grad;
  check_message(*impl_, Operation::send, "to", to, tag);
  Link& link = impl_->link_of(tensor, Operation::send);
  Header header = header_of(Operation::send, tensor);
  impl_->refuse_broken(header);
  if (impl_->debug) send_header(*impl_, header, to, tag);
  std::vector<at::Tensor> wires{as_bytes(tensor.contiguous())};
  impl_->run(link, header, tensor.is_cuda(),
             [&](c10d::Backend& backend) { return backend.send(wires, static_cast<int>(to), static_cast<int>(tag)); });
}

void Group::recv(const at::Tensor& tensor, int64_t from, int64_t tag) const {
  const at::NoGradGuard no_grad;
  check_message(*impl_, Operation::recv, "from", from, tag);
  Link& link = impl_->link_of(tensor, Operation::recv);
  Header header = header_of(Operation::recv, tensor);
  impl_->refuse_broken(header);
  if (impl_->debug) check_header(*impl_, header, from, tag);
  const at::Tensor dense = tensor.contiguous();
  std::vector<at::Tensor> wires{as_bytes(dense)};
  impl_->run(link, header, tensor.is_cuda(), [&](c10d::Backend& backend) {
    return backend.recv(wires, static_cast<int>(from), static_cast<int>(tag));
  });
  if (dense.const_data_ptr() != tensor.const_data_ptr()) tensor.copy_(dense);
}

std::vector<std::string> Group::all_gather_bytes(std::string_view bytes) const {
  return strings_of(all_gather_list(tensor_of(bytes)));
}

std::vector<std::string> Group::gather_bytes(std::string_view bytes, int64_t root) const {
  return strings_of(gather(tensor_of(bytes), root));
}

std::string Group::broadcast_bytes(std::string_view bytes, int64_t root) const {
  impl_->check_rank(Operation::broadcast, "root", root);
  if (impl_->single()) return std::string(bytes);
  const bool sends = rank() == root;
  const at::Tensor length = at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong);
  broadcast(length, root);
  const at::Tensor content = sends ? tensor_of(bytes) : at::empty({*length.const_data_ptr<int64_t>()}, at::kByte);
  broadcast(content, root);
  return string_of(content);
}

}  // namespace accelerate::comm

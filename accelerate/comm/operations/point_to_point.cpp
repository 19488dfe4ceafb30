// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/operations/point_to_point.hpp"

#include "accelerate/base/version_counter.hpp"
#include "accelerate/comm/core/bytes.hpp"

namespace accelerate::comm {
namespace {

void check_message(const GroupCore& group, Operation operation, std::string_view what, int64_t peer, int64_t tag) {
  group.check_rank(operation, what, peer);
  if (peer == group.rank) group.refuse(operation, fmt::format("{} is {}, this rank itself", what, peer));
  if (tag < 0 || tag > kMaxTag) {
    group.refuse(operation, fmt::format("tag is {}, must be 0 to {}", tag, kMaxTag));
  }
}

/// Debug mode: the receiver compares the signature before the data arrives.
void send_fingerprint(GroupCore& group, const CollectiveFingerprint& signature, int64_t to, int64_t tag) {
  std::vector<at::Tensor> wires{tensor_of(signature)};
  group.run(*group.cpu, signature, false,
            [&](c10d::Backend& backend) { return backend.send(wires, static_cast<int>(to), static_cast<int>(tag)); });
}

void check_fingerprint(GroupCore& group, const CollectiveFingerprint& mine, int64_t from, int64_t tag) {
  std::vector<at::Tensor> wires{tensor_of(mine)};
  group.run(*group.cpu, mine, false,
            [&](c10d::Backend& backend) { return backend.recv(wires, static_cast<int>(from), static_cast<int>(tag)); });
  const CollectiveFingerprint theirs = decode({wires[0].const_data_ptr<int64_t>(), CollectiveFingerprint::kWords});
  if (theirs.dtype == mine.dtype && theirs.shape == mine.shape) return;
  const auto text =
      fmt::format("this rank expects {}, rank {} sends {}; they must be equal.", describe_fingerprint(mine),
                  group.job_ranks.at(static_cast<size_t>(from)), describe_fingerprint(theirs));
  group.break_with(fmt::format("a message ({}): {}", name_of(mine.operation), text));  // the data is still pending
  throw Error(ErrorKind::peer, group.place, name_of(mine.operation), text);
}

}  // namespace

void send(const GroupPtr& group, const at::Tensor& tensor, int64_t to, int64_t tag) {
  const at::NoGradGuard no_grad;
  check_message(*group, Operation::send, "to", to, tag);
  Connection& connection = group->connection_of(tensor, Operation::send);
  CollectiveFingerprint signature = fingerprint_of(Operation::send, tensor);
  group->check_dimensions(signature.operation, signature.shape.size());
  group->refuse_broken(signature);
  if (group->debug) send_fingerprint(*group, signature, to, tag);
  std::vector<at::Tensor> wires{as_bytes(dense_of(tensor))};
  group->run(connection, signature, !tensor.is_cpu(),
             [&](c10d::Backend& backend) { return backend.send(wires, static_cast<int>(to), static_cast<int>(tag)); });
}

void recv(const GroupPtr& group, const at::Tensor& tensor, int64_t from, int64_t tag) {
  const at::NoGradGuard no_grad;
  check_message(*group, Operation::recv, "from", from, tag);
  Connection& connection = group->connection_of(tensor, Operation::recv);
  CollectiveFingerprint signature = fingerprint_of(Operation::recv, tensor);
  group->check_dimensions(signature.operation, signature.shape.size());
  group->refuse_broken(signature);
  if (group->debug) check_fingerprint(*group, signature, from, tag);
  const at::Tensor dense = dense_of(tensor);
  std::vector<at::Tensor> wires{as_bytes(dense)};
  group->run(connection, signature, !tensor.is_cpu(), [&](c10d::Backend& backend) {
    return backend.recv(wires, static_cast<int>(from), static_cast<int>(tag));
  });
  dense.const_data_ptr() == tensor.const_data_ptr() ? base::count_write(tensor) : void(tensor.copy_(dense));
}

}  // namespace accelerate::comm

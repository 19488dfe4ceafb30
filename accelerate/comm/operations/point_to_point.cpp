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

/// Tags of the messages that carry signatures in debug mode, above all tags of users and backends.
constexpr int64_t kFingerprintTags = 65536;

using Start = c10::intrusive_ptr<c10d::Work> (c10d::Backend::*)(std::vector<at::Tensor>&, int, int);

/// One message in one direction.
struct Message {
  Start start;
  int64_t peer;
  int64_t tag;
};

void start_message(PendingOperation& pending, Connection& connection, const Message& message) {
  const auto begun = Clock::now();
  try {
    std::vector<at::Tensor> wires{pending.wire};
    pending.work = (connection.backend.get()->*message.start)(wires, static_cast<int>(message.peer),
                                                              static_cast<int>(message.tag));
  } catch (const std::exception&) {
    pending.group->fail_operation(pending.signature, pending.group->timeout, Clock::now() - begun);
  }
}

/// Debug mode: starts the message that carries the signature of the following message.
PendingOperation start_fingerprint(const PendingOperation& of, Message message) {
  PendingOperation pending{.group = of.group, .signature = of.signature, .wire = as_bytes(tensor_of(of.signature))};
  message.tag += kFingerprintTags;
  start_message(pending, *of.group->cpu, message);
  return pending;
}

/// Debug mode: the receiver compares the signature before the data arrives.
void check_fingerprint(PendingOperation& theirs_pending, int64_t from) {
  theirs_pending.wait(theirs_pending.group->timeout);
  GroupCore& group = *theirs_pending.group;
  const CollectiveFingerprint& mine = theirs_pending.signature;
  const CollectiveFingerprint theirs =
      decode({theirs_pending.wire.view(at::kLong).const_data_ptr<int64_t>(), CollectiveFingerprint::kWords});
  if (theirs.dtype == mine.dtype && theirs.shape == mine.shape) return;
  const auto text =
      fmt::format("this rank expects {}, rank {} sends {}; they must be equal.", describe_fingerprint(mine),
                  group.job_ranks.at(static_cast<size_t>(from)), describe_fingerprint(theirs));
  // The data is still pending.
  group.break_with(fmt::format("a message ({}): {}", collective_name(mine.operation), text));
  throw Error(ErrorKind::peer, group.place, collective_name(mine.operation), text);
}

PendingOperation message_of(const GroupPtr& group, Operation operation, const at::Tensor& tensor) {
  PendingOperation pending{.group = group, .signature = fingerprint_of(operation, tensor), .target = tensor};
  group->check_dimensions(operation, pending.signature.shape.size());
  group->refuse_broken(pending.signature);
  pending.dense = dense_of(tensor);
  pending.wire = as_bytes(pending.dense);
  return pending;
}

}  // namespace

PendingPtr send_async(const GroupPtr& group, const at::Tensor& tensor, int64_t to, int64_t tag) {
  const at::NoGradGuard no_grad;
  check_message(*group, Operation::send, "to", to, tag);
  Connection& connection = group->connection_of(tensor, Operation::send);
  PendingOperation pending = message_of(group, Operation::send, tensor);
  const Message message{&c10d::Backend::send, to, tag};
  if (group->debug) {
    auto fingerprint = std::make_shared<PendingOperation>(start_fingerprint(pending, message));
    pending.before_wait = [fingerprint](PendingOperation& data) { fingerprint->wait(data.group->timeout); };
  }
  start_message(pending, connection, message);
  return shared_by_handles(std::move(pending));
}

PendingPtr recv_async(const GroupPtr& group, const at::Tensor& tensor, int64_t from, int64_t tag) {
  const at::NoGradGuard no_grad;
  check_message(*group, Operation::recv, "from", from, tag);
  Connection& connection = group->connection_of(tensor, Operation::recv);
  PendingOperation pending = message_of(group, Operation::recv, tensor);
  pending.copy_back = pending.dense.const_data_ptr() != tensor.const_data_ptr();
  if (!pending.copy_back) base::count_write(tensor);
  const Message message{&c10d::Backend::recv, from, tag};
  // Gloo ends the process if a message is longer than its buffer, so the signature is compared first. On an accelerator
  // the order of the messages must not change.
  const bool compares_first = group->debug && tensor.is_cpu();
  if (group->debug) {
    auto fingerprint = std::make_shared<PendingOperation>(start_fingerprint(pending, message));
    pending.before_wait = [fingerprint, message, compares_first, &connection](PendingOperation& data) {
      check_fingerprint(*fingerprint, message.peer);
      if (compares_first) start_message(data, connection, message);
    };
  }
  if (!compares_first) start_message(pending, connection, message);
  return shared_by_handles(std::move(pending));
}

void send(const GroupPtr& group, const at::Tensor& tensor, int64_t to, int64_t tag) {
  send_async(group, tensor, to, tag)->wait(group->timeout);
}

void recv(const GroupPtr& group, const at::Tensor& tensor, int64_t from, int64_t tag) {
  recv_async(group, tensor, from, tag)->wait(group->timeout);
}

}  // namespace accelerate::comm

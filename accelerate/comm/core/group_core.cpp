// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/group_core.hpp"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <utility>

#include "accelerate/base/heartbeat.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/comm/core/deadline_call.hpp"
#include "accelerate/comm/core/peer_error_text.hpp"
#include "accelerate/device/absent_memory.hpp"

namespace accelerate::comm {
namespace {

/// Returns "operation 3 ([4] float32)", or "operation 3 ([4] float32) over the 2 tensor parallel ranks" if the ranks of
/// the group have a name. Messages between two ranks have no number.
std::string where(const GroupCore& group, const CollectiveFingerprint& signature) {
  if (signature.sequence == 0) {
    const auto text = fmt::format("a message ({})", describe_fingerprint(signature));
    return group.ranks_name.empty() ? text : fmt::format("{} between {} ranks", text, group.ranks_name);
  }
  const auto text = fmt::format("operation {} ({})", signature.sequence, describe_fingerprint(signature));
  return group.ranks_name.empty() ? text : fmt::format("{} over {}", text, group.named_ranks());
}

/// Adds the name of the ranks to the text of calls that do not match.
std::string prefix_ranks_name(const GroupCore& group, const std::string& disagreement) {
  return group.ranks_name.empty() ? disagreement : fmt::format("over {}, {}", group.named_ranks(), disagreement);
}

std::string missing_text(const std::vector<int64_t>& missing) {
  if (missing.empty()) return "";
  return fmt::format("{} {} did not join.", missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "));
}

}  // namespace

Connection& GroupCore::connection_of(const at::Tensor& tensor, Operation operation) const {
  check_dense(operation, tensor);
  device::require_data(tensor);  // the backends read memory
  if (tensor.is_cpu()) return *cpu;
  if (on_device && device && tensor.device().type() == device->type()) return *on_device;
  base::fail(ErrorKind::usage, place, collective_name(operation),
             "the tensor is on {}, this group ({}) carries {} tensors", tensor.device().str(), backend_name,
             on_device ? "CPU and " + c10::DeviceTypeName(device->type(), false) : "CPU");
}

void GroupCore::refuse_broken(const CollectiveFingerprint& signature) {
  if (broken_) fail_broken(collective_name(signature.operation));
}

void GroupCore::fail_broken(std::string_view operation) {
  const std::lock_guard lock(broken_mutex_);
  const auto group = ranks_name.empty() ? "this group" : fmt::format("this group of {} {} ranks", size, ranks_name);
  throw Error(ErrorKind::peer, place, operation, fmt::format("{} is broken since {}", group, broken_reason_),
              broken_missing_ranks_);
}

void GroupCore::check(std::string_view operation) {
  if (broken_) fail_broken(operation);
  try {
    if (cpu) cpu->check();
    if (on_device) on_device->check();
  } catch (const PeerLost& error) {
    break_with(fmt::format("{}: {}", operation, error.what()));
    throw Error(ErrorKind::peer, place, operation, error.what());
  }
}

GroupCore::~GroupCore() {
  if (on_device && std::uncaught_exceptions() > 0) on_device->abort_operations();
}

void GroupCore::number(CollectiveFingerprint& signature) {
  refuse_broken(signature);
  check_dimensions(signature.operation, signature.shape.size());
  signature.sequence = ++sequence_;
  base::record_collective({.operation = collective_name(signature.operation),
                           .group = ranks_name.empty() ? name : name_with_ranks,
                           .sequence = signature.sequence,
                           .dtype = signature.dtype ? dtype_name(*signature.dtype) : std::string_view(),
                           .shape = {signature.shape.data(), signature.shape.size()}});
}

/// Compares operations over a separate connection.
struct CollectiveSequenceChecker {
  GroupPtr over{};
  std::mutex mutex{};  // backward threads may call concurrently
};

void share_sequence_checker(const GroupPtr& group, const GroupPtr& duplicate) {
  if (!group->sequence_checker) {
    group->sequence_checker = std::make_shared<CollectiveSequenceChecker>();
    CollectiveFingerprint signature{.operation = Operation::duplicate};
    Subgroup part{.name = group->name + "/debug",
                  .ranks_name = group->ranks_name,
                  .ranks = all_ranks(group->size),
                  .rank = group->rank};
    group->sequence_checker->over = group->make_part(signature, part);
  }
  duplicate->sequence_checker = group->sequence_checker;
  duplicate->is_duplicate = true;
}

/// Does not compare shapes, because two models may fill their buckets in a different order on another rank.
void GroupCore::check_sequence(const CollectiveFingerprint& signature) {
  const std::lock_guard lock(sequence_checker->mutex);
  CollectiveFingerprint mine = signature;
  mine.root = is_duplicate ? 1 : 0;
  const auto signatures = sequence_checker->over->exchange(mine);
  const auto call = [](const CollectiveFingerprint& of) {
    return fmt::format("{} ({}){}", collective_name(of.operation), describe_fingerprint(of),
                       of.root == 0 ? "" : " on a duplicate of the group");
  };
  for (size_t r = 0; r < signatures.size(); ++r) {
    if (signatures[r].operation == mine.operation && signatures[r].root == mine.root) continue;
    const auto text = prefix_ranks_name(
        *this,
        fmt::format("this rank calls {}, rank {} calls {}; all ranks must call the same operations in the same order.",
                    call(mine), job_ranks[r], call(signatures[r])));
    break_with(fmt::format("operation {} ({}): {}", signature.sequence, collective_name(signature.operation), text));
    throw Error(ErrorKind::peer, place, collective_name(signature.operation), text);
  }
}

void GroupCore::begin(CollectiveFingerprint& signature, Agreement agreement, Connection& connection) {
  number(signature);
  if (sequence_checker) check_sequence(signature);
  bool compared = false;
  try {
    connection.check();
    compared = connection.announce(signature, agreement);
  } catch (const std::exception&) {
    fail_operation(signature, timeout, {});
  }
  if (compared || !debug) return;
  compare(exchange(signature), agreement);
}

std::vector<CollectiveFingerprint> GroupCore::begin_with_fingerprints(CollectiveFingerprint& signature,
                                                                      Agreement agreement) {
  number(signature);
  if (sequence_checker) check_sequence(signature);
  cpu->announce(signature, agreement);
  auto signatures = exchange(signature);
  compare(signatures, agreement);
  return signatures;
}

std::vector<CollectiveFingerprint> GroupCore::exchange(const CollectiveFingerprint& mine) {
  at::Tensor input = tensor_of(mine);
  at::Tensor output = at::empty({size * input.numel()}, at::kLong);
  run(*cpu, mine, false, [&](c10d::Backend& backend) {
    return backend._allgather_base(output, input, {.timeout = timeout, .asyncOp = false});
  });
  std::vector<CollectiveFingerprint> signatures;
  signatures.reserve(static_cast<size_t>(size));
  const std::span all(output.const_data_ptr<int64_t>(), static_cast<size_t>(output.numel()));
  for (size_t r = 0; r < static_cast<size_t>(size); ++r)
    signatures.push_back(decode(all.subspan(r * CollectiveFingerprint::kWords)));
  return signatures;
}

void GroupCore::compare(const std::vector<CollectiveFingerprint>& signatures, Agreement agreement) {
  const auto& mine = signatures.at(static_cast<size_t>(rank));
  if (auto text = disagreement(signatures, static_cast<size_t>(rank), agreement, job_ranks)) {
    text = prefix_ranks_name(*this, *text);
    break_with(fmt::format("operation {} ({}): {}", mine.sequence, collective_name(mine.operation), *text));
    throw Error(ErrorKind::peer, place, collective_name(mine.operation), *text);
  }
}

void GroupCore::wait(c10d::Work& work, const CollectiveFingerprint& signature, std::chrono::milliseconds limit,
                     bool on_stream) {
  const bool was_broken = broken_;
  // In a broken group a pending operation may never end, because the remaining ones were dropped.
  if (was_broken && !work.isCompleted()) refuse_broken(signature);
  const auto begun = Clock::now();
  const base::HeartbeatWaitScope beat(signature.sequence);
  try {
    // With a deadline NCCL's wait blocks the host. Without one only the stream waits, and NCCL's watchdog detects
    // timeouts.
    if (on_stream) {
      work.wait();
    } else {
      work.wait(limit);
    }
  } catch (const std::exception&) {
    if (was_broken) refuse_broken(signature);  // a consequence of the earlier failure
    fail_operation(signature, limit, Clock::now() - begun);
  }
}

void GroupCore::fail_operation(const CollectiveFingerprint& signature, std::chrono::milliseconds limit,
                               Clock::duration waited) {
  std::string text;
  PeerReport peers;
  try {
    throw;
  } catch (const FingerprintMismatch& error) {
    // If two signatures differ, every rank's signature differs from at least one of them.
    text = prefix_ranks_name(
        *this, disagreement(error.signatures, static_cast<size_t>(rank), error.agreement, job_ranks).value());
  } catch (const PeerLost& error) {
    text = fmt::format("{} cannot end: {}", where(*this, signature), error.what());
  } catch (const PeerLeft& error) {
    text = fmt::format("{} cannot end: rank {} aborted after its own error", where(*this, signature),
                       job_ranks.at(static_cast<size_t>(error.rank)));
  } catch (const DeadlineExceeded& error) {
    text = fmt::format("waited {:g} s in {}", seconds(limit), where(*this, signature));
    for (const int64_t member : error.missing) peers.missing_ranks.push_back(job_ranks.at(static_cast<size_t>(member)));
    peers.text = missing_text(peers.missing_ranks);
    if (peers.text.empty()) peers = cpu->diagnose_peers(signature);
    text += peers.text.empty() ? "." : "; " + peers.text;
  } catch (const std::exception& error) {
    const bool late = waited >= limit * 9 / 10;
    base::log(base::LogLevel::debug, place, "{}: the backend reports: {}", collective_name(signature.operation),
              reason_of(error));
    peers = cpu->diagnose_peers(signature);
    text = late ? fmt::format("waited {:g} s in {}", seconds(limit), where(*this, signature))
                : fmt::format("{} lost the connection to a peer", where(*this, signature));
    text += peers.text.empty() ? "." : "; " + peers.text;
  }
  const auto number =
      signature.sequence == 0 ? std::string("a message") : fmt::format("operation {}", signature.sequence);
  break_with(fmt::format("{} ({}): {}", number, collective_name(signature.operation), text), peers.missing_ranks);
  throw Error(ErrorKind::peer, place, collective_name(signature.operation), text, std::move(peers.missing_ranks));
}

void GroupCore::break_with(const std::string& reason, const std::vector<int64_t>& missing_ranks) {
  {
    const std::lock_guard lock(broken_mutex_);
    if (!broken_) {
      broken_reason_ = reason;
      broken_missing_ranks_ = missing_ranks;
    }
    broken_ = true;
  }
  cpu->abort_operations();
  if (on_device) on_device->abort_operations();
}

void PendingOperation::wait(std::chrono::milliseconds limit) {
  if (finished) return;
  limit = std::clamp(limit, std::chrono::milliseconds(1), kMaxWait);  // in c10d, 0 means no limit
  if (before_wait) std::exchange(before_wait, nullptr)(*this);
  if (work) group->wait(*work, signature, limit, !wire.is_cpu());
  finished = true;
  work.reset();
  const at::NoGradGuard no_grad;
  if (divide_by > 1) wire.div_(divide_by);  // not in the target, because its dtype may be too small for the sum
  if (copy_back) target.copy_(dense);
}

PendingPtr shared_by_handles(PendingOperation pending) {
  const auto drop = [](PendingOperation* operation) {
    try {
      // the query makes the backend progress
      if (operation->work && !operation->finished) operation->work->isCompleted();
    } catch (const std::exception&) {  // wait() reports it
    }
    delete operation;
  };
  return {new PendingOperation(std::move(pending)), drop};
}

GroupPtr GroupCore::make_part(const CollectiveFingerprint& signature, Subgroup part) {
  for (const int64_t member : part.ranks) part.job_ranks.push_back(job_ranks.at(static_cast<size_t>(member)));
  auto child = std::make_shared<GroupCore>();
  child->place = place;
  child->rank = part.rank;
  child->size = static_cast<int64_t>(part.ranks.size());
  child->set_name(part.name, part.ranks_name);
  child->job_ranks = part.job_ranks;
  child->timeout = timeout;
  child->debug = debug;
  child->device = device;
  const auto begun = Clock::now();
  try {
    child->cpu = cpu->split(part);
    if (on_device) child->on_device = on_device->split(part);
  } catch (const std::exception&) {
    fail_operation(signature, timeout, Clock::now() - begun);
  }
  return with_process_group(std::move(child));
}

void GroupCore::set_name(std::string unique, std::string of_ranks) {
  name = std::move(unique);
  ranks_name = std::move(of_ranks);
  name_with_ranks = fmt::format("{} ({})", name, ranks_name);
}

std::string GroupCore::named_ranks() const { return fmt::format("the {} {} ranks", size, ranks_name); }

void GroupCore::check_rank(Operation operation, std::string_view what, int64_t value) const {
  if (value >= 0 && value < size) return;
  refuse(operation, fmt::format("{} is {}, must be 0 to {}", what, value, size - 1));
}

void GroupCore::check_dimensions(Operation operation, size_t dimensions) const {
  if (dimensions <= CollectiveFingerprint::kMaxDims) return;
  refuse(operation, fmt::format("the tensor has {} dimensions, at most {} are supported; flatten it before, "
                                "and restore its shape afterwards",
                                dimensions, CollectiveFingerprint::kMaxDims));
}

void GroupCore::check_dense(Operation operation, const at::Tensor& tensor) const {
  if (tensor.layout() == at::kStrided) return;
  refuse(operation, fmt::format("the tensor is {}, only dense tensors travel; call to_dense() before, or send its "
                                "indices and values",
                                c10::str(tensor.layout())));
}

void GroupCore::check_rows(Operation operation, const at::Tensor& whole, const at::Tensor& part) const {
  const bool fits = whole.dim() > 0 && whole.dim() == part.dim() && whole.size(0) == part.size(0) * size &&
                    whole.sizes().slice(1) == part.sizes().slice(1) && whole.dtype() == part.dtype() &&
                    whole.device() == part.device();
  if (fits) return;
  refuse(operation,
         fmt::format("{} does not hold {} parts of {}", describe_fingerprint(fingerprint_of(operation, whole)), size,
                     describe_fingerprint(fingerprint_of(operation, part))));
}

void GroupCore::refuse(Operation operation, std::string_view message) const {
  throw Error(ErrorKind::usage, place, collective_name(operation), message);
}

at::Tensor tensor_of(const CollectiveFingerprint& signature) {
  const auto words = encode(signature);
  at::Tensor tensor = at::empty({static_cast<int64_t>(words.size())}, at::kLong);
  std::copy(words.begin(), words.end(), tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

std::vector<int64_t> all_ranks(int64_t size) {
  std::vector<int64_t> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

GroupPtr with_process_group(GroupPtr group) {
  if (group->cpu) {
    const auto process_group = c10::make_intrusive<c10d::ProcessGroup>(
        c10::make_intrusive<c10d::HashStore>(), static_cast<int>(group->rank), static_cast<int>(group->size));
    if (group->device) process_group->setBoundDeviceId(group->device);  // setBackend copies it
    process_group->setBackend(c10::DeviceType::CPU, group->cpu->tag, group->cpu->backend);
    process_group->setDefaultBackend(group->cpu->tag);
    if (group->on_device) {
      process_group->setBackend(group->device->type(), group->on_device->tag, group->on_device->backend);
    }
    process_group->setGroupName(group->name);
    group->process_group = process_group;
    group->backend_name =
        group->on_device ? fmt::format("{}+{}", group->on_device->name, group->cpu->name) : group->cpu->name;
  }
  return group;
}

}  // namespace accelerate::comm

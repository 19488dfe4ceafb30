// SPDX-License-Identifier: Apache-2.0
// What a Group and a Pending hold: operations numbered, compared across ranks, waited for. Private.
#pragma once

#include <ATen/core/grad_mode.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "accelerate/comm/core/call_signature.hpp"
#include "accelerate/comm/core/connection.hpp"
#include "accelerate/comm/core/reduce_op.hpp"

namespace accelerate::comm {

using Clock = std::chrono::steady_clock;

struct GroupCore;
struct OneSequence;
using GroupPtr = std::shared_ptr<GroupCore>;

struct GroupCore {
  GroupCore() = default;
  GroupCore(const GroupCore&) = delete;
  GroupCore& operator=(const GroupCore&) = delete;
  /// During stack unwinding the connections abort first, because the peers may never join the pending operations.
  ~GroupCore();

  Place place{};
  int64_t rank = 0;
  int64_t size = 1;
  std::vector<int64_t> job_ranks{};  ///< the members' ranks in the job, for messages
  std::string name = "single";       ///< of the group: keys and sub-groups start with it
  std::string backend_name = "single";
  std::chrono::milliseconds timeout = std::chrono::seconds(600);
  bool debug = false;
  std::optional<at::Device> device{};  ///< of tensors that are not on the CPU
  std::shared_ptr<Connection> cpu{};
  std::shared_ptr<Connection> on_device{};  ///< for the device's tensors
  c10::intrusive_ptr<c10d::ProcessGroup> process_group{};

  /// Debug: where the operations of this group and of its duplicates are compared in one sequence. Null: by themselves.
  std::shared_ptr<OneSequence> one_sequence{};
  bool is_duplicate = false;  ///< in that sequence

  [[nodiscard]] bool single() const { return cpu == nullptr; }
  [[nodiscard]] Connection& connection_of(const at::Tensor& tensor, Operation operation) const;

  /// Numbers the operation, rejects it on a broken group, and compares it across ranks if requested.
  void begin(CallSignature& signature, Agreement agreement, Connection& connection);
  void refuse_broken(const CallSignature& signature);
  /// \throws Error on a broken group. Breaks the group if an asynchronous operation has failed.
  void check(std::string_view asked_by);
  /// The first half of begin: for operations that exchange their signatures anyway.
  void number(CallSignature& signature);
  /// number and exchange, and compare in any case.
  std::vector<CallSignature> begin_with_signatures(CallSignature& signature, Agreement agreement);
  /// Every rank's signature, by one all-gather of equal parts.
  std::vector<CallSignature> exchange(const CallSignature& mine);
  /// \throws Error if the signatures do not match.
  void compare(const std::vector<CallSignature>& signatures, Agreement agreement);

  /// Waits, and converts every exception of a backend to an Error of kind peer.
  void wait(c10d::Work& work, const CallSignature& signature, std::chrono::milliseconds limit, bool on_stream = false);
  /// Starts and waits for one operation of a backend.
  template <typename Begin>
  void run(Connection& connection, const CallSignature& signature, bool on_stream, const Begin& begin_operation) {
    const auto begun = Clock::now();
    c10::intrusive_ptr<c10d::Work> work;
    try {
      work = begin_operation(*connection.backend);
    } catch (const std::exception&) {
      fail_operation(signature, timeout, Clock::now() - begun);
    }
    if (work) wait(*work, signature, timeout, on_stream);
  }
  /// Inside a catch block: breaks the group and throws the Error of kind peer for it.
  [[noreturn]] void fail_operation(const CallSignature& signature, std::chrono::milliseconds limit,
                                   Clock::duration waited);
  /// Rejects every later call with this reason and abandons pending operations.
  void break_with(const std::string& why, const std::vector<int64_t>& missing_ranks = {});
  void check_rank(Operation operation, std::string_view what, int64_t value) const;
  /// Checks the maximum number of dimensions that a signature can represent.
  void check_dimensions(Operation operation, size_t dimensions) const;
  void check_dense(Operation operation, const at::Tensor& tensor) const;
  /// whole is [P * n, ...] for part [n, ...], of one dtype and device.
  void check_rows(Operation operation, const at::Tensor& whole, const at::Tensor& part) const;
  [[noreturn]] void refuse(Operation operation, std::string_view message) const;

  /// The group of some of the ranks; a collective call.
  std::shared_ptr<GroupCore> make_part(const CallSignature& signature, Subgroup part);

 private:
  void compare_in_sequence(const CallSignature& signature);
  [[noreturn]] void fail_broken(std::string_view asked_by);

  std::atomic<int64_t> sequence_ = 0;
  std::atomic<bool> broken_ = false;
  std::mutex why_mutex_;
  std::string why_;
  std::vector<int64_t> why_missing_;  ///< ranks of the job that did not join the operation that broke the group
};

/// An operation under way.
struct PendingOperation {
  GroupPtr group{};
  c10::intrusive_ptr<c10d::Work> work{};
  CallSignature signature{};
  at::Tensor target{};  ///< the user's
  at::Tensor dense{};   ///< the target, or a contiguous copy that is copied back
  at::Tensor wire{};    ///< dense as the backend knows it
  at::Tensor input{};   ///< kept alive
  bool copy_back = false;
  int64_t divide_by = 1;
  bool finished = false;

  void wait(std::chrono::milliseconds limit);
};
using PendingPtr = std::shared_ptr<PendingOperation>;

/// Shared by the operation's handles. If all are dropped without wait(), the remaining steps still run.
PendingPtr shared_by_handles(PendingOperation pending);

std::string_view name_of(Operation operation);

/// The largest tag of send and recv: MPI promises 32767, and we keep two.
constexpr int64_t kLargestTag = 32765;

/// A signature as words in memory of its own, [kWords] int64: after a wait that was given up a backend may still use
/// it.
at::Tensor tensor_of(const CallSignature& signature);

/// Debug: both groups' operations, and those of duplicates that joined before, are one sequence from now on.
void compare_in_one_sequence(const GroupPtr& group, const GroupPtr& duplicate);

/// 0, 1 .. size-1.
std::vector<int64_t> all_ranks(int64_t size);

/// Gives it LibTorch's process group over its connections. Returns its argument.
GroupPtr with_process_group(GroupPtr group);

}  // namespace accelerate::comm

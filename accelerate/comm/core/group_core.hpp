// SPDX-License-Identifier: Apache-2.0
// Shared state of Group and Pending: numbers operations, compares them across ranks and waits for them. Private.
#pragma once

#include <ATen/core/grad_mode.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "accelerate/comm/core/collective_fingerprint.hpp"
#include "accelerate/comm/core/connection.hpp"
#include "accelerate/comm/core/reduce_op.hpp"

namespace accelerate::comm {

using Clock = std::chrono::steady_clock;

struct GroupCore;
struct CollectiveSequenceChecker;
using GroupPtr = std::shared_ptr<GroupCore>;

struct GroupCore {
  GroupCore() = default;
  GroupCore(const GroupCore&) = delete;
  GroupCore& operator=(const GroupCore&) = delete;
  /// During stack unwinding the connections abort first, because the peers may never join the pending operations.
  ~GroupCore();

  RankContext place{};
  int64_t rank = 0;
  int64_t size = 1;
  std::vector<int64_t> job_ranks{};  ///< members as ranks of the job, for messages
  std::string name = "single";       ///< prefix of the group's keys and of the names of its sub-groups
  std::string ranks_name{};          ///< "tensor parallel", for messages; may be empty
  std::string name_with_ranks{};     ///< "world/3.0 (tensor parallel)", for reports of all groups
  std::string backend_name = "single";
  std::chrono::milliseconds timeout = std::chrono::seconds(600);
  bool debug = false;
  std::optional<at::Device> device{};  ///< device of tensors that are not on the CPU
  std::shared_ptr<Connection> cpu{};
  std::shared_ptr<Connection> on_device{};  ///< connection for tensors on the device
  c10::intrusive_ptr<c10d::ProcessGroup> process_group{};

  /// Debug mode: compares the operations of this group and its duplicates as one sequence. Null if there are no
  /// duplicates.
  std::shared_ptr<CollectiveSequenceChecker> sequence_checker{};
  bool is_duplicate = false;  ///< true if this group is a duplicate in that sequence

  [[nodiscard]] bool single() const { return cpu == nullptr; }
  void set_name(std::string unique, std::string of_ranks);
  /// Returns "the 2 tensor parallel ranks". Requires a name of the ranks.
  [[nodiscard]] std::string named_ranks() const;
  [[nodiscard]] Connection& connection_of(const at::Tensor& tensor, Operation operation) const;

  /// Numbers the operation, rejects it on a broken group, and compares it across ranks if requested.
  void begin(CollectiveFingerprint& signature, Agreement agreement, Connection& connection);
  void refuse_broken(const CollectiveFingerprint& signature);
  /// \throws Error on a broken group. Breaks the group if an asynchronous operation has failed.
  void check(std::string_view operation);
  /// First half of begin(), for operations that exchange their signatures in any case.
  void number(CollectiveFingerprint& signature);
  /// Calls number() and exchange(), and always compares.
  std::vector<CollectiveFingerprint> begin_with_fingerprints(CollectiveFingerprint& signature, Agreement agreement);
  /// Returns every rank's signature, by one all-gather of equal parts.
  std::vector<CollectiveFingerprint> exchange(const CollectiveFingerprint& mine);
  /// \throws Error if the signatures do not match.
  void compare(const std::vector<CollectiveFingerprint>& signatures, Agreement agreement);

  /// Waits, and converts every exception of a backend to an Error of kind peer.
  void wait(c10d::Work& work, const CollectiveFingerprint& signature, std::chrono::milliseconds limit,
            bool on_stream = false);
  /// Starts and waits for one operation of a backend.
  template <typename Begin>
  void run(Connection& connection, const CollectiveFingerprint& signature, bool on_stream,
           const Begin& begin_operation) {
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
  [[noreturn]] void fail_operation(const CollectiveFingerprint& signature, std::chrono::milliseconds limit,
                                   Clock::duration waited);
  /// Rejects every later call with this reason and abandons pending operations.
  void break_with(const std::string& reason, const std::vector<int64_t>& missing_ranks = {});
  void check_rank(Operation operation, std::string_view what, int64_t value) const;
  /// Checks the maximum number of dimensions that a signature can represent.
  void check_dimensions(Operation operation, size_t dimensions) const;
  void check_dense(Operation operation, const at::Tensor& tensor) const;
  /// Checks that `whole` is [P * n, ...] for `part` [n, ...], with the same dtype and device.
  void check_rows(Operation operation, const at::Tensor& whole, const at::Tensor& part) const;
  [[noreturn]] void refuse(Operation operation, std::string_view message) const;

  /// Creates a group of some of the ranks. Collective.
  std::shared_ptr<GroupCore> make_part(const CollectiveFingerprint& signature, Subgroup part);

 private:
  void check_sequence(const CollectiveFingerprint& signature);
  [[noreturn]] void fail_broken(std::string_view operation);

  std::atomic<int64_t> sequence_ = 0;
  std::atomic<bool> broken_ = false;
  std::mutex broken_mutex_;
  std::string broken_reason_;
  /// Ranks of the job that did not join the operation that broke the group.
  std::vector<int64_t> broken_missing_ranks_;
};

/// A pending operation.
struct PendingOperation {
  GroupPtr group{};
  c10::intrusive_ptr<c10d::Work> work{};
  CollectiveFingerprint signature{};
  at::Tensor target{};  ///< the user's tensor
  at::Tensor dense{};   ///< the target, or a contiguous copy that is copied back
  at::Tensor wire{};    ///< `dense` in the dtype and shape of the backend
  at::Tensor input{};   ///< kept alive until the operation ends
  bool copy_back = false;
  int64_t divide_by = 1;
  std::function<void(PendingOperation&)> before_wait{};  ///< unset, or runs once before `work` is awaited
  bool finished = false;

  void wait(std::chrono::milliseconds limit);
};
using PendingPtr = std::shared_ptr<PendingOperation>;

/// Shared by the operation's handles. If all are dropped without wait(), the remaining steps still run.
PendingPtr shared_by_handles(PendingOperation pending);

/// Largest tag of send and recv: MPI guarantees tags up to 32767, of which the library reserves two.
constexpr int64_t kMaxTag = 32765;

/// Returns a signature as [kWords] int64 in its own memory, because a backend may still use it after an abandoned wait.
at::Tensor tensor_of(const CollectiveFingerprint& signature);

/// Debug mode: from now on the operations of both groups, and of earlier duplicates, are compared as one sequence.
void share_sequence_checker(const GroupPtr& group, const GroupPtr& duplicate);

/// Returns 0, 1 .. size-1.
std::vector<int64_t> all_ranks(int64_t size);

/// Creates LibTorch's process group over the group's connections. Returns its argument.
GroupPtr with_process_group(GroupPtr group);

}  // namespace accelerate::comm

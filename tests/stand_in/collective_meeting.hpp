// SPDX-License-Identifier: Apache-2.0
// Rendezvous of the collective jobs of a communicator's ranks on their side streams. The hosts do not wait.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <tuple>
#include <vector>

namespace stand_in {

/// Contribution of one rank to a collective, as CPU tensors.
struct Part {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  std::vector<at::Tensor> outputs{};
  std::vector<at::Tensor> inputs{};
  c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM;
  int64_t root = 0;
  std::vector<int64_t> output_rows{};  ///< for all-to-all; empty for equal parts
  std::vector<int64_t> input_rows{};
};

class Meeting {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Meeting(int size) : size_(static_cast<size_t>(size)) {}

  /// Called by a job of this rank. Waits until all ranks' jobs of that number have arrived and the operation is
  /// complete.
  /// \param number  The host's count of collectives; those on different streams may arrive in any order.
  /// \throws on every waiting rank at the deadline, if the ranks' calls differ, and after abort().
  void meet(int rank, uint64_t number, Part part, std::chrono::milliseconds timeout);

  /// A message arrives as soon as it is sent.
  void send(int from, int to, int tag, at::Tensor letter);
  void receive(int from, int to, int tag, const at::Tensor& into, std::chrono::milliseconds timeout);

  /// Ends all current and later waits with an error.
  void abort(const std::string& reason);
  [[nodiscard]] std::optional<std::string> failure();

 private:
  struct Round {
    std::vector<std::optional<Part>> parts{};  ///< by rank
    size_t arrived = 0;
    size_t left = 0;
    bool over = false;
  };

  void fail(const std::string& reason);
  void check_failure() const;

  std::mutex mutex_;
  std::condition_variable changed_;
  size_t size_;
  std::map<uint64_t, Round> rounds_;
  std::map<std::tuple<int, int, int>, std::deque<at::Tensor>> mail_;  ///< from, to, tag
  std::optional<std::string> failure_;
};

/// Rank 0 creates a meeting and distributes its number; every rank then requests it once.
int64_t open_meeting(int size);
std::shared_ptr<Meeting> join_meeting(int64_t number);

}  // namespace stand_in

// SPDX-License-Identifier: Apache-2.0
// What a Group and a Pending hold. Private.
#pragma once

#include <ATen/core/grad_mode.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/comm/header.hpp"
#include "accelerate/comm/link.hpp"

namespace accelerate::comm {

using Clock = std::chrono::steady_clock;

struct Group::Impl : std::enable_shared_from_this<Group::Impl> {
  Place place{};
  int64_t rank = 0;
  int64_t size = 1;
  std::vector<int64_t> labels{};  ///< the members' ranks in the job, for messages
  std::string name = "single";    ///< of the group: keys and sub-groups start with it
  std::string backend_name = "single";
  std::chrono::milliseconds timeout = std::chrono::seconds(600);
  bool debug = false;
  std::optional<at::Device> device{};  ///< of CUDA tensors
  std::shared_ptr<Link> cpu{};
  std::shared_ptr<Link> cuda{};
  c10::intrusive_ptr<c10d::ProcessGroup> process_group{};

  [[nodiscard]] bool single() const { return cpu == nullptr; }
  [[nodiscard]] Link& link_of(const at::Tensor& tensor, Operation operation) const;

  /// Numbers the operation, refuses it on a broken group, and compares it across ranks where that is asked for.
  void begin(Header& header, Agreement agreement, Link& link);
  void refuse_broken(const Header& header);
  /// The first half of begin: for operations that exchange their headers anyway.
  void number(Header& header);
  /// number and exchange, and compare in any case.
  std::vector<Header> begin_with_headers(Header& header, Agreement agreement);
  /// Every rank's header, by one all-gather of equal parts.
  std::vector<Header> exchange(const Header& mine);
  /// Throws when the headers do not fit together.
  void compare(const std::vector<Header>& headers, Agreement agreement);

  /// Waits, and turns whatever a backend throws into an Error of kind peer.
  void wait(c10d::Work& work, const Header& header, std::chrono::milliseconds limit, bool on_cuda = false);
  /// Starts and waits for one operation of a backend.
  template <typename Start>
  void run(Link& link, const Header& header, bool on_cuda, const Start& start) {
    const auto begun = Clock::now();
    c10::intrusive_ptr<c10d::Work> work;
    try {
      work = start(*link.backend);
    } catch (const std::exception&) {
      fail_operation(header, timeout, Clock::now() - begun);
    }
    if (work) wait(*work, header, timeout, on_cuda);
  }
  /// Inside a catch block: breaks the group and throws the Error of kind peer for it.
  [[noreturn]] void fail_operation(const Header& header, std::chrono::milliseconds limit, Clock::duration waited);
  void check_rank(Operation operation, std::string_view what, int64_t value) const;
  /// whole is [P * n, ...] for part [n, ...], of one dtype and device.
  void check_rows(Operation operation, const at::Tensor& whole, const at::Tensor& part) const;
  [[noreturn]] void refuse(Operation operation, std::string_view message) const;

  /// The group of some of the ranks; a collective call.
  Group make_part(const Header& header, Subgroup part);

 private:
  void break_with(const std::string& why);

  std::atomic<int64_t> sequence_ = 0;
  std::atomic<bool> broken_ = false;
  std::mutex why_mutex_;
  std::string why_;
};

struct Pending::Impl {
  std::shared_ptr<Group::Impl> group{};
  c10::intrusive_ptr<c10d::Work> work{};
  Header header{};
  at::Tensor target{};  ///< the user's
  at::Tensor dense{};   ///< the target, or a contiguous stand-in that is copied back
  at::Tensor wire{};    ///< dense as the backend knows it
  at::Tensor input{};   ///< kept alive
  bool copy_back = false;
  int64_t divide_by = 1;
  bool finished = false;

  void wait(std::chrono::milliseconds limit);
};

std::string_view name_of(Operation operation);

/// The largest tag of send and recv: MPI promises no more, and we keep one.
constexpr int64_t kLargestTag = 32766;

/// A header as words in memory of its own, [kWords] int64: after a wait that was given up a backend may still use it.
at::Tensor tensor_of(const Header& header);

/// 0, 1 .. size-1.
std::vector<int64_t> all_ranks(int64_t size);

/// Makes the handle and LibTorch's process group from the links.
Group make_group(std::shared_ptr<Group::Impl> impl);

}  // namespace accelerate::comm

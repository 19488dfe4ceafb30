// SPDX-License-Identifier: Apache-2.0
// Progress of a running rank in shared memory: the launcher maps the same file, ACCELERATE_HEARTBEAT_FILE. A write
// costs a few stores. If the variable is unset, nothing is written.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace accelerate::base {

/// A started collective operation.
struct Collective {
  std::string_view operation{};  ///< "all_reduce"
  std::string_view group{};
  int64_t sequence = 0;  ///< number of the operation in its group, from 1
  std::string_view dtype{};
  std::span<const int64_t> shape{};
};

/// Layout of the mapped file. All zeros mean that the rank has not started yet.
struct HeartbeatPage {
  static constexpr size_t kMaxDims = 8;

  std::atomic<uint64_t> beats;      ///< changes with every progress of the rank
  std::atomic<int64_t> step;        ///< number of backward() calls
  std::atomic<int64_t> waiting_in;  ///< sequence of the pending operation; 0 if none, -1 for a message
  std::atomic<uint64_t> version;    ///< version of the following fields; odd during a write
  int64_t sequence;
  int64_t dims;
  std::array<int64_t, kMaxDims> shape;
  std::array<char, 24> operation;
  std::array<char, 16> dtype;
  std::array<char, 56> group;
};

/// Snapshot of a page.
struct Heartbeat {
  uint64_t beats = 0;
  int64_t step = 0;
  int64_t waiting_in = 0;
  int64_t sequence = 0;  ///< number of the last started operation; 0 if none
  std::string call{};    ///< "all_reduce, operation 41 of world ([1024] float32)"

  bool operator==(const Heartbeat&) const = default;
};

/// Returns a consistent snapshot. `call` is empty if no operation has started or if writers prevented a consistent
/// read.
Heartbeat read_heartbeat(const HeartbeatPage& page);

/// Returns this process's page, or null if heartbeats are not requested. Mapped at the first call.
HeartbeatPage* process_heartbeat();

// Used by the library from any thread. They do nothing without a page.
void record_heartbeat_step();
void record_collective(const Collective& collective);
/// Marks the duration of a wait, including one that ends with an exception.
class HeartbeatWaitScope {
 public:
  /// \param sequence  Number of the operation; 0 for a message, which has none.
  explicit HeartbeatWaitScope(int64_t sequence);
  ~HeartbeatWaitScope();
  HeartbeatWaitScope(const HeartbeatWaitScope&) = delete;
  HeartbeatWaitScope& operator=(const HeartbeatWaitScope&) = delete;

 private:
  HeartbeatPage* page_;
};

}  // namespace accelerate::base

// SPDX-License-Identifier: Apache-2.0
// Private: memory that the ranks of a group share, if all of them run on one machine.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "accelerate/base/file_descriptor.hpp"
#include "accelerate/comm/core/collective_fingerprint.hpp"

namespace accelerate::comm {

/// Every rank has two blocks of bytes, two records of its call and a counter, which it alone writes and all ranks read.
///
/// The memory is a file in /dev/shm with a random name, which only the same user can open. It has no name any more
/// after unlink(), so nothing remains if the ranks are killed later. Each rank holds a lock on the file, which the
/// system releases when the process and its forked children have ended. Not thread-safe.
class SharedMemory {
 public:
  /// Words of a call: the fingerprint that its group announced, and that of the operation itself.
  static constexpr size_t kWords = 2 * CollectiveFingerprint::kWords;
  /// Bytes of a block. A rank with a large second-level cache could use more, but the file must stay small, because
  /// containers often have 64 MB in /dev/shm.
  static constexpr int64_t kBlockBytes = int64_t{256} << 10;

  /// \returns null if the system has no shared memory, or less than the ranks require.
  static std::unique_ptr<SharedMemory> create(int64_t ranks);
  /// \param address  address() of the rank that created the memory.
  /// \returns null if this process is on another machine, in another network namespace, or cannot open the file.
  static std::unique_ptr<SharedMemory> open(const std::string& address, int64_t rank, int64_t ranks);

  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  /// Name of the file and of the machine.
  [[nodiscard]] const std::string& address() const { return address_; }
  /// Removes the file's name. Only the creator has one to remove.
  void unlink() noexcept;

  /// \param round  Selects one of two blocks.
  [[nodiscard]] char* block(int64_t rank, uint32_t round) const;
  [[nodiscard]] std::span<int64_t, kWords> call(int64_t rank, uint32_t round) const;

  /// Lets other ranks read this rank's block and call of the round. Rounds increase by one, modulo 2^32.
  void publish(int64_t rank, uint32_t round) const;
  /// True if the rank has published the round, so that its block can be read.
  [[nodiscard]] bool has_published(int64_t rank, uint32_t round) const;
  /// Waits until has_published(), at most for this time. Returns has_published().
  bool wait_for(int64_t rank, uint32_t round, std::chrono::nanoseconds at_most) const;
  /// False if the process of another rank has ended, or has destroyed its object.
  [[nodiscard]] bool is_alive(int64_t rank) const;

 private:
  struct Rank;

  SharedMemory(base::FileDescriptor file, std::string address, int64_t rank, int64_t ranks);
  static int64_t file_bytes(int64_t ranks);
  /// Maps the file, and locks this rank's byte of it. Returns false if the system refuses.
  bool map();
  [[nodiscard]] Rank& state_of(int64_t rank) const;

  base::FileDescriptor file_;
  std::string address_;
  int64_t rank_, ranks_;
  bool is_named_ = false;
  bool spins_;
  char* memory_ = nullptr;
};

}  // namespace accelerate::comm

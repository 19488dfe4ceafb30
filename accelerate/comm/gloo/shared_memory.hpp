// SPDX-License-Identifier: Apache-2.0
// Private: memory that the ranks of a group share, if all of them run on one machine.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "accelerate/base/file_descriptor.hpp"
#include "accelerate/comm/core/collective_fingerprint.hpp"
#include "accelerate/comm/gloo/shared_counter.hpp"

namespace accelerate::comm {

/// For collectives, every rank has two blocks of bytes, two records of its call and a counter, which it alone writes
/// and all ranks read. For messages, every pair of ranks has a channel of some slots in each direction, and every rank
/// a doorbell, which counts the changes of its channels.
///
/// The memory is a file in /dev/shm with a random name, which only the same user can open. It has no name any more
/// after unlink(), so nothing remains if the ranks are killed later. Each rank holds a lock on the file, which the
/// system releases when the process and its forked children have ended. The const functions are thread-safe.
class SharedMemory {
 public:
  /// Words of a call: the fingerprint that its group announced, and that of the operation itself.
  static constexpr size_t kWords = 2 * CollectiveFingerprint::kWords;
  /// Bytes of a block. A rank with a large second-level cache could use more, but the file must stay small, because
  /// containers often have 64 MB in /dev/shm.
  static constexpr int64_t kBlockBytes = int64_t{256} << 10;
  /// Slots of a channel.
  static constexpr uint32_t kSlots = 4;
  /// More ranks have no channels.
  static constexpr int64_t kMaxRanksWithChannels = 16;

  /// Messages from one rank to another one. The sender fills the slots in turn, and the receiver empties them.
  struct Channel {
    struct Message {
      int64_t tag, bytes;
    };
    alignas(64) SharedCounter filled;   ///< slots so far
    alignas(64) SharedCounter emptied;  ///< slots so far
    /// For each slot in which a message begins.
    alignas(64) std::array<Message, kSlots> begins;
  };

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

  /// Counts the changes of the channels from and to this rank.
  [[nodiscard]] SharedCounter& doorbell(int64_t rank) const;
  /// Waits until the doorbell of the rank is no longer `seen`, at most for this time.
  /// \param spins  False if the change may take long, so that the thread sleeps at once.
  void wait_for_doorbell(int64_t rank, uint32_t seen, std::chrono::nanoseconds at_most, bool spins) const {
    doorbell(rank).wait_for(seen + 1, at_most, spins && spins_);
  }
  /// A draining rank only sends messages for which nobody has waited. One that has left exchanges none.
  enum class Presence : uint32_t { active, draining, left };
  [[nodiscard]] Presence presence(int64_t rank) const;
  void set_presence(int64_t rank, Presence presence) const;
  [[nodiscard]] Channel& channel(int64_t from, int64_t to) const;
  /// \param number  Slots of the channel before this one.
  [[nodiscard]] char* slot(int64_t from, int64_t to, uint32_t number) const;
  /// Smaller if there are more ranks, so that the file stays small.
  [[nodiscard]] int64_t slot_bytes() const { return slot_bytes(ranks_); }

  /// False if the process of another rank has ended, or has destroyed its object.
  [[nodiscard]] bool is_alive(int64_t rank) const;

 private:
  struct Rank;

  SharedMemory(base::FileDescriptor file, std::string address, int64_t rank, int64_t ranks);
  static int64_t channels(int64_t ranks);
  static int64_t slot_bytes(int64_t ranks);
  static int64_t file_bytes(int64_t ranks);
  /// Maps the file, and locks this rank's byte of it. Returns false if the system refuses.
  bool map();
  [[nodiscard]] Rank& state_of(int64_t rank) const;
  [[nodiscard]] int64_t channel_number(int64_t from, int64_t to) const;

  base::FileDescriptor file_;
  std::string address_;
  int64_t rank_, ranks_;
  bool is_named_ = false;
  bool spins_;
  char* memory_ = nullptr;
};

}  // namespace accelerate::comm

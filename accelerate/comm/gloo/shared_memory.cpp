// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/gloo/shared_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <utility>

#include "accelerate/base/random_id.hpp"

namespace accelerate::comm {
namespace {

constexpr int64_t kCacheLine = 64;
const std::string kNamePrefix = "/accelerate-";
/// Identifies this machine and its network namespace. Ranks in different namespaces are simulated hosts, or containers
/// that the user separated.
std::string machine_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  struct stat network {};
  if (boot.empty() || stat("/proc/self/ns/net", &network) != 0) return {};
  return fmt::format("{}.{}", boot, network.st_ino);
}

std::string file_of(const std::string& address) { return address.substr(0, address.find(' ')); }

// Locks of open file descriptions belong to this object, not to the process, so ranks may be threads of one process.
struct flock byte_lock(int64_t rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

struct SharedMemory::Rank {
  alignas(kCacheLine) SharedCounter published;
  alignas(kCacheLine) SharedCounter doorbell;
  std::atomic<Presence> presence;
  alignas(kCacheLine) std::array<std::array<int64_t, kWords>, 2> calls;
};

int64_t SharedMemory::channels(int64_t ranks) { return ranks <= kMaxRanksWithChannels ? ranks * (ranks - 1) : 0; }

int64_t SharedMemory::slot_bytes(int64_t ranks) {
  constexpr int64_t kBudget = int64_t{8} << 20;
  const int64_t equal_part = kBudget / (std::max<int64_t>(ranks * (ranks - 1), 1) * kSlots);
  return std::clamp(equal_part / kCacheLine * kCacheLine, kCacheLine, int64_t{64} << 10);
}

int64_t SharedMemory::file_bytes(int64_t ranks) {
  const auto of_rank = 2 * kBlockBytes + static_cast<int64_t>(sizeof(Rank));
  const auto of_channel = kSlots * slot_bytes(ranks) + static_cast<int64_t>(sizeof(Channel));
  return ranks * of_rank + channels(ranks) * of_channel;
}

SharedMemory::SharedMemory(base::FileDescriptor file, std::string address, int64_t rank, int64_t ranks)
    : file_(std::move(file)),
      address_(std::move(address)),
      rank_(rank),
      ranks_(ranks),
      spins_(sysconf(_SC_NPROCESSORS_ONLN) >= ranks) {}

std::unique_ptr<SharedMemory> SharedMemory::create(int64_t ranks) {
  const std::string machine = machine_id();
  const std::string name = kNamePrefix + base::random_id();
  if (machine.empty()) return nullptr;
  base::FileDescriptor file(shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (!file) return nullptr;
  std::unique_ptr<SharedMemory> memory(new SharedMemory(std::move(file), name + " " + machine, /*rank=*/0, ranks));
  memory->is_named_ = true;
  // Allocates the memory now. Otherwise a write would end the process if the file system is full.
  int error = 0;
  do {
    error = posix_fallocate(memory->file_.get(), 0, file_bytes(ranks));
  } while (error == EINTR);
  return error == 0 && memory->map() ? std::move(memory) : nullptr;
}

std::unique_ptr<SharedMemory> SharedMemory::open(const std::string& address, int64_t rank, int64_t ranks) {
  const std::string name = file_of(address);
  if (!name.starts_with(kNamePrefix) || address != name + " " + machine_id()) return nullptr;
  base::FileDescriptor file(shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
  struct stat status {};
  if (!file || fstat(file.get(), &status) != 0 || status.st_uid != geteuid()) return nullptr;
  if (status.st_size != file_bytes(ranks)) return nullptr;
  std::unique_ptr<SharedMemory> memory(new SharedMemory(std::move(file), address, rank, ranks));
  return memory->map() ? std::move(memory) : nullptr;
}

bool SharedMemory::map() {
  void* const mapped = mmap(nullptr, static_cast<size_t>(file_bytes(ranks_)), PROT_READ | PROT_WRITE, MAP_SHARED,
                            file_.get(), /*offset=*/0);
  if (mapped == MAP_FAILED) return false;
  memory_ = static_cast<char*>(mapped);
  auto lock = byte_lock(rank_);
  return fcntl(file_.get(), F_OFD_SETLK, &lock) == 0;
}

SharedMemory::~SharedMemory() {
  unlink();
  if (memory_ != nullptr) munmap(memory_, static_cast<size_t>(file_bytes(ranks_)));
}

void SharedMemory::unlink() noexcept {
  if (std::exchange(is_named_, false)) shm_unlink(file_of(address_).c_str());
}

SharedMemory::Rank& SharedMemory::state_of(int64_t rank) const {
  return *reinterpret_cast<Rank*>(memory_ + ranks_ * 2 * kBlockBytes + rank * static_cast<int64_t>(sizeof(Rank)));
}

char* SharedMemory::block(int64_t rank, uint32_t round) const { return memory_ + (2 * rank + round % 2) * kBlockBytes; }

std::span<int64_t, SharedMemory::kWords> SharedMemory::call(int64_t rank, uint32_t round) const {
  return state_of(rank).calls[round % 2];
}

void SharedMemory::publish(int64_t rank, uint32_t round) const { state_of(rank).published.set(round); }

bool SharedMemory::has_published(int64_t rank, uint32_t round) const {
  return state_of(rank).published.has_reached(round);
}

bool SharedMemory::wait_for(int64_t rank, uint32_t round, std::chrono::nanoseconds at_most) const {
  return state_of(rank).published.wait_for(round, at_most, spins_);
}

SharedMemory::Presence SharedMemory::presence(int64_t rank) const { return state_of(rank).presence.load(); }

void SharedMemory::set_presence(int64_t rank, Presence presence) const { state_of(rank).presence.store(presence); }

SharedCounter& SharedMemory::doorbell(int64_t rank) const { return state_of(rank).doorbell; }

// Blocks of all ranks, their states, states of all channels, slots of all channels.
SharedMemory::Channel& SharedMemory::channel(int64_t from, int64_t to) const {
  char* const first = memory_ + ranks_ * (2 * kBlockBytes + static_cast<int64_t>(sizeof(Rank)));
  return *reinterpret_cast<Channel*>(first + channel_number(from, to) * static_cast<int64_t>(sizeof(Channel)));
}

char* SharedMemory::slot(int64_t from, int64_t to, uint32_t number) const {
  char* const first = memory_ + ranks_ * (2 * kBlockBytes + static_cast<int64_t>(sizeof(Rank))) +
                      channels(ranks_) * static_cast<int64_t>(sizeof(Channel));
  return first + (channel_number(from, to) * kSlots + number % kSlots) * slot_bytes();
}

int64_t SharedMemory::channel_number(int64_t from, int64_t to) const {
  return from * (ranks_ - 1) + (to > from ? to - 1 : to);
}

bool SharedMemory::is_alive(int64_t rank) const {
  auto lock = byte_lock(rank);
  return fcntl(file_.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace accelerate::comm

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/gloo/shared_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <ctime>
#include <fstream>
#include <utility>

#include "accelerate/base/random_id.hpp"

namespace accelerate::comm {
namespace {

constexpr int64_t kCacheLine = 64;
const std::string kNamePrefix = "/accelerate-";
// A rank that is about to publish does so within this time, and waking a thread would take longer.
constexpr std::chrono::microseconds kSpinTime{20};
constexpr int kSpinsPerClockRead = 32;

void pause_briefly() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

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

void futex_wait(const std::atomic<uint32_t>& word, uint32_t value, std::chrono::nanoseconds at_most) {
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  const timespec limit{.tv_sec = whole.count(), .tv_nsec = (at_most - whole).count()};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

void futex_wake_all(const std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

struct SharedMemory::Rank {
  alignas(kCacheLine) std::atomic<uint32_t> published;
  std::atomic<uint32_t> waiting;  // threads that sleep until the next publish()
  alignas(kCacheLine) std::array<std::array<int64_t, kWords>, 2> calls;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free);

int64_t SharedMemory::file_bytes(int64_t ranks) {
  return ranks * (2 * kBlockBytes + static_cast<int64_t>(sizeof(Rank)));
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

// The order of the two accesses here and in wait_for() is sequentially consistent, so either this thread sees the one
// that waits, or that one sees the new value.
void SharedMemory::publish(int64_t rank, uint32_t round) const {
  Rank& own = state_of(rank);
  own.published.store(round);
  if (own.waiting.load() > 0) futex_wake_all(own.published);
}

bool SharedMemory::has_published(int64_t rank, uint32_t round) const {
  return static_cast<int32_t>(state_of(rank).published.load(std::memory_order_acquire) - round) >= 0;
}

bool SharedMemory::wait_for(int64_t rank, uint32_t round, std::chrono::nanoseconds at_most) const {
  if (has_published(rank, round)) return true;
  if (spins_) {
    const auto end = std::chrono::steady_clock::now() + kSpinTime;
    do {
      for (int i = 0; i < kSpinsPerClockRead; ++i) {
        if (has_published(rank, round)) return true;
        pause_briefly();
      }
    } while (std::chrono::steady_clock::now() < end);
  }
  Rank& other = state_of(rank);
  ++other.waiting;
  const uint32_t seen = other.published.load();
  if (static_cast<int32_t>(seen - round) < 0) futex_wait(other.published, seen, at_most);
  --other.waiting;
  return has_published(rank, round);
}

bool SharedMemory::is_alive(int64_t rank) const {
  auto lock = byte_lock(rank);
  return fcntl(file_.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace accelerate::comm

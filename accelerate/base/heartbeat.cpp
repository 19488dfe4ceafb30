// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/heartbeat.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::base {
namespace {

HeartbeatPage* map_heartbeat_page() {
  const char* path = std::getenv("ACCELERATE_HEARTBEAT_FILE");
  if (path == nullptr || *path == '\0') return nullptr;
  const FileDescriptor file(open(path, O_RDWR | O_CLOEXEC));
  struct stat status {};
  const bool is_one = file && fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode) &&
                      status.st_size >= static_cast<off_t>(sizeof(HeartbeatPage));
  if (!is_one) return nullptr;
  void* memory = mmap(nullptr, sizeof(HeartbeatPage), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  return memory == MAP_FAILED ? nullptr : static_cast<HeartbeatPage*>(memory);
}

template <size_t size>
void copy_text(std::string_view from, std::array<char, size>& to) {
  const size_t length = std::min(from.size(), size - 1);
  std::copy_n(from.begin(), length, to.begin());
  to[length] = '\0';
}

template <size_t size>
std::string string_from(const std::array<char, size>& from) {
  return {from.data(), strnlen(from.data(), size)};
}

std::string describe_call(const HeartbeatPage& page, int64_t sequence) {
  const auto dims = std::clamp<int64_t>(page.dims, 0, HeartbeatPage::kMaxDims);
  const auto dtype = string_from(page.dtype);
  const auto tensor =
      dtype.empty() ? ""
                    : fmt::format(" ([{}] {})", fmt::join(page.shape.begin(), page.shape.begin() + dims, ", "), dtype);
  return fmt::format("{}, operation {} of {}{}", string_from(page.operation), sequence, string_from(page.group),
                     tensor);
}

}  // namespace

Heartbeat read_heartbeat(const HeartbeatPage& page) {
  Heartbeat now{.beats = page.beats, .step = page.step, .waiting_in = page.waiting_in};
  constexpr int max_reads = 1000;
  for (int i = 0; i < max_reads; ++i) {
    const uint64_t before = page.version.load(std::memory_order_acquire);
    now.sequence = page.sequence;
    now.call = now.sequence == 0 ? "" : describe_call(page, now.sequence);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 == 0 && page.version.load(std::memory_order_relaxed) == before) return now;
  }
  now.call.clear();
  return now;
}

HeartbeatPage* process_heartbeat() {
  static HeartbeatPage* const page =
      map_heartbeat_page();  // unmapped only at process exit, because any thread may write
  return page;
}

void record_heartbeat_step() {
  auto* page = process_heartbeat();
  if (page == nullptr) return;
  page->step.fetch_add(1, std::memory_order_relaxed);
  page->beats.fetch_add(1, std::memory_order_relaxed);
}

void record_collective(const Collective& collective) {
  auto* page = process_heartbeat();
  if (page == nullptr) return;
  page->beats.fetch_add(1, std::memory_order_relaxed);
  uint64_t version = page->version.load(std::memory_order_relaxed);
  // If another thread is writing, its operation is as recent as this one, so this one is dropped.
  if (version % 2 != 0 || !page->version.compare_exchange_strong(version, version + 1)) return;
  std::atomic_thread_fence(std::memory_order_release);
  page->sequence = collective.sequence;
  const size_t dims = std::min(collective.shape.size(), HeartbeatPage::kMaxDims);
  page->dims = static_cast<int64_t>(dims);
  std::copy_n(collective.shape.begin(), dims, page->shape.begin());
  copy_text(collective.operation, page->operation);
  copy_text(collective.dtype, page->dtype);
  copy_text(collective.group, page->group);
  page->version.store(version + 2, std::memory_order_release);
}

HeartbeatWaitScope::HeartbeatWaitScope(int64_t sequence) : page_(process_heartbeat()) {
  if (page_ != nullptr) page_->waiting_in.store(sequence == 0 ? -1 : sequence, std::memory_order_relaxed);
}

HeartbeatWaitScope::~HeartbeatWaitScope() {
  if (page_ == nullptr) return;
  page_->waiting_in.store(0, std::memory_order_relaxed);
  page_->beats.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace accelerate::base

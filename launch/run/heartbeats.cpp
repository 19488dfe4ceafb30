// SPDX-License-Identifier: Apache-2.0
#include "launch/run/heartbeats.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "accelerate/base/file_descriptor.hpp"
#include "launch/plan/error.hpp"

namespace accelerate::launch {

Heartbeats::~Heartbeats() {
  for (const auto& [rank, page] : pages_) munmap(const_cast<base::HeartbeatPage*>(page), sizeof *page);
}

std::string Heartbeats::add(const std::string& folder, int64_t rank) {
  const auto path = fmt::format("{}/heartbeat_{}", folder, rank);
  const base::FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  void* memory = MAP_FAILED;
  if (file && ftruncate(file.get(), sizeof(base::HeartbeatPage)) == 0) {
    memory = mmap(nullptr, sizeof(base::HeartbeatPage), PROT_READ, MAP_SHARED, file.get(), 0);
  }
  if (memory == MAP_FAILED) fail(ErrorKind::io, "{} cannot be made: {}", path, std::strerror(errno));
  pages_[rank] = static_cast<const base::HeartbeatPage*>(memory);
  return path;
}

std::chrono::milliseconds Heartbeats::stalled_time(Clock::time_point now) {
  uint64_t beats = 0;
  for (const auto& [rank, page] : pages_) beats += page->beats.load(std::memory_order_relaxed);
  if (!since_ || beats != beats_) since_ = now;
  beats_ = beats;
  return std::chrono::duration_cast<std::chrono::milliseconds>(now - *since_);
}

}  // namespace accelerate::launch

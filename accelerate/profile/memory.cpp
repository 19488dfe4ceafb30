// SPDX-License-Identifier: Apache-2.0
#include "accelerate/profile/memory.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>

#include <fstream>
#include <string_view>

#include "accelerate/base/bytes_text.hpp"

namespace accelerate::profile {

using base::bytes_text;

namespace {

/// Reads "VmRSS:     1234 kB" of /proc/self/status in bytes; 0 if the line does not exist.
int64_t status_bytes(std::string_view key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return std::stoll(line.substr(key.size())) * 1024;
  }
  return 0;
}

constexpr auto kAggregate = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);

/// Returns null for an accelerator whose allocator has no statistics.
c10::DeviceAllocator* allocator_of(c10::Device device) {
  return dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
}

}  // namespace

MemoryFigures memory_figures(c10::Device device) {
  MemoryFigures figures{.resident_bytes = status_bytes("VmRSS:"), .peak_resident_bytes = status_bytes("VmHWM:")};
  if (device.is_cpu()) return figures;
  auto* const allocator = allocator_of(device);
  if (allocator == nullptr) return figures;
  const auto stats = allocator->getDeviceStats(device.index());
  figures.allocated_bytes = stats.allocated_bytes[kAggregate].current;
  figures.peak_allocated_bytes = stats.allocated_bytes[kAggregate].peak;
  figures.reserved_bytes = stats.reserved_bytes[kAggregate].current;
  figures.peak_reserved_bytes = stats.reserved_bytes[kAggregate].peak;
  return figures;
}

void reset_peak_memory(c10::Device device) {
  std::ofstream("/proc/self/clear_refs") << "5";  // proc(5): VmHWM becomes VmRSS
  if (device.is_cpu()) return;
  if (auto* const allocator = allocator_of(device)) allocator->resetPeakStats(device.index());
}

void empty_cache(c10::Device device) {
  if (device.is_cpu()) return;
  if (auto* const allocator = allocator_of(device)) allocator->emptyCache();
}

std::string memory_text(const MemoryFigures& memory) {
  std::string text;
  if (memory.peak_reserved_bytes > 0 || memory.peak_allocated_bytes > 0) {
    text = fmt::format("allocated {} (peak {}), reserved {} (peak {}), ", bytes_text(memory.allocated_bytes),
                       bytes_text(memory.peak_allocated_bytes), bytes_text(memory.reserved_bytes),
                       bytes_text(memory.peak_reserved_bytes));
  }
  return text + fmt::format("resident {} (peak {})", bytes_text(memory.resident_bytes),
                            bytes_text(memory.peak_resident_bytes));
}

}  // namespace accelerate::profile

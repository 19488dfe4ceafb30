// SPDX-License-Identifier: Apache-2.0
#include "accelerate/profile/memory.hpp"

#include <sys/mman.h>

#include <cstring>

#include "tests/testing.hpp"

using namespace accelerate::profile;

TEST_CASE("on the CPU memory is the process's part of the machine's, and a peak stays until it is reset") {
  const auto before = memory_figures(at::kCPU);
  CHECK(before.resident_bytes > 1 << 20);
  CHECK(before.peak_resident_bytes >= before.resident_bytes);
  CHECK(before.allocated_bytes == 0);
  constexpr size_t much = size_t{64} << 20;
  // mmap, because malloc may keep freed memory, as with sanitizers.
  void* block = mmap(nullptr, much, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(block != MAP_FAILED);
  std::memset(block, 1, much);
  const auto with_it = memory_figures(at::kCPU);
  CHECK(with_it.resident_bytes >= before.resident_bytes + (60 << 20));
  munmap(block, much);
  const auto after = memory_figures(at::kCPU);
  CHECK(after.resident_bytes < with_it.resident_bytes);
  CHECK(after.peak_resident_bytes >= with_it.resident_bytes - (4 << 20));  // the kernel's counter is inexact
  reset_peak_memory(at::kCPU);
  CHECK(memory_figures(at::kCPU).peak_resident_bytes < with_it.resident_bytes);
}

TEST_CASE("memory is reported in a line, for the accelerator if there is one") {
  CHECK(memory_text({.resident_bytes = 812 << 20, .peak_resident_bytes = 1 << 30}) ==
        "resident 812 MiB (peak 1.0 GiB)");
  CHECK(memory_text({.allocated_bytes = 1 << 30,
                     .peak_allocated_bytes = int64_t{2} << 30,
                     .reserved_bytes = int64_t{3} << 30,
                     .peak_reserved_bytes = int64_t{3} << 30,
                     .resident_bytes = 812 << 20,
                     .peak_resident_bytes = 812 << 20}) ==
        "allocated 1.0 GiB (peak 2.0 GiB), reserved 3.0 GiB (peak 3.0 GiB), resident 812 MiB (peak 812 MiB)");
  CHECK(memory_text({.peak_allocated_bytes = 1 << 30, .resident_bytes = 1 << 20, .peak_resident_bytes = 1 << 20}) ==
        "allocated 0 bytes (peak 1.0 GiB), reserved 0 bytes (peak 0 bytes), resident 1.0 MiB (peak 1.0 MiB)");
}

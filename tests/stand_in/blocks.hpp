// SPDX-License-Identifier: Apache-2.0
// Device memory with a record of its accesses, and the single way to launch a job on a stream.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace stand_in {

/// One use of a part of a block by a job.
struct Access {
  const char* low;
  const char* high;
  int stream;
  uint64_t job;
  bool write;
};

/// An allocation. Jobs that access it keep it alive, independent of tensors.
struct Block {
  char* address = nullptr;  ///< the address that the host sees; not readable or writable
  char* memory = nullptr;   ///< the memory that kernels use
  size_t bytes = 0;
  int stream = 0;  ///< stream of the allocation
  c10::DeviceIndex device = 0;
  std::vector<Access> accesses{};
  std::set<int> recorded{};  ///< streams of record_stream
  bool of_graph = false;     ///< allocated during a capture: each replay uses it again

  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block();
};
using BlockPtr = std::shared_ptr<Block>;

/// A planned access of a job.
struct Touch {
  BlockPtr block;
  const char* low;
  const char* high;
  bool write;
};

/// Launches a job on the stream and compares its accesses with those of other streams: an access that conflicts with an
/// earlier one and is not ordered after it is a race.
void launch(const c10::Stream& stream, const std::string& what, const std::vector<Touch>& touches,
            std::function<void()> job);

/// An allocator with the guarantees of CUDA's caching allocator: a block is immediately free for its own stream, and
/// after the streams of record_stream(). New and freed memory is all ones: NaN, -1.
class DeviceMemory final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override;
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override;
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;
};
DeviceMemory& device_memory();

/// Null for zero bytes.
BlockPtr block_of(const c10::DataPtr& data);

}  // namespace stand_in

// SPDX-License-Identifier: Apache-2.0
// An accelerator for tests: device type PrivateUse1, named "standin". This is its interface for tests;
// docs/design/stand_in.md describes how it works.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <string>
#include <vector>

namespace stand_in {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

/// True if the tests run on the machine's NVIDIA GPUs instead (ACCELERATE_TEST_DEVICE=cuda). Then nothing is installed,
/// there are no races and no trace, and host waits are blocking calls of CUDA's runtime.
bool on_gpu();
/// Device type of the tests: kType or CUDA.
inline c10::DeviceType tested_type() { return on_gpu() ? c10::DeviceType::CUDA : kType; }
/// Returns "standin:index" or "cuda:index".
inline c10::Device device(int64_t index = 0) { return {tested_type(), static_cast<c10::DeviceIndex>(index)}; }
/// Number of devices.
int64_t devices();

/// Call once, first: it cannot be undone, and autograd counts the devices at the first backward.
void install(int devices, size_t bytes_of_each);
/// Waits until all streams have completed. Call before main() ends, because kernels need LibTorch's globals.
void finish();

/// Number of host waits for this device: item(), blocking copies, synchronize, nonzero ...
int64_t host_waits(c10::DeviceIndex device);
/// Number of waits of the calling thread, for any device.
int64_t host_waits_here();

/// Number of copies to this device from pageable host memory, in which the host waits on a GPU.
int64_t pageable_uploads(c10::DeviceIndex device);
/// Number of allocations of pinned memory. Freed memory is overwritten immediately.
int64_t pinned_allocations();

/// Conflicting accesses without an order (no event, no host wait) since the last call, one line each. Independent of
/// timing: one run without any delay finds them.
std::vector<std::string> detect_races();

/// Selects slow streams: main for default streams, side for the others.
enum class Slow { all, main, side };
/// From now on every job of the slow streams first sleeps for half of this time to all of it. 0 disables the delay.
void set_delay(int microseconds, Slow slow = Slow::all);

/// If on, collectives with asyncOp = false run on the caller's stream without a Work, as in NCCL. Otherwise they run on
/// the side stream with a Work, like all others, as in backends without asyncOp.
void set_on_callers_stream(bool on);

/// Limits the memory of the device from now on.
void set_limit(c10::DeviceIndex device, size_t bytes);

/// One job as the host launched it.
struct Launch {
  std::string what;             ///< operator name
  c10::DeviceIndex device = 0;  ///< device of the stream
  bool side = false;            ///< true if not on the default stream
  int stream = 0;               ///< number of the stream, counted over all devices
  uint64_t job = 0;             ///< number of the job in that stream
  std::vector<uint64_t> after;  ///< per stream number: the last job for which this one waits
};
/// True if stream order or events make b wait for a.
bool ordered(const Launch& a, const Launch& b);
/// Records every launch from now on.
void start_trace();
/// Ends the trace and returns it in the host's order.
std::vector<Launch> take_trace();

/// Operators with shapes unknown in advance, for which the host waited for the device's stream.
std::vector<std::string> synchronous_operators();

}  // namespace stand_in

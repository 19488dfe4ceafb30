// SPDX-License-Identifier: Apache-2.0
// An accelerator for tests: device type PrivateUse1, named "standin". This is its interface for tests; README.md
// describes how it works.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <string>
#include <vector>

namespace stand_in {

inline constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

/// Whether the tests run on the machine's NVIDIA GPUs instead (ACCELERATE_TEST_DEVICE=cuda): then nothing is installed,
/// there are no races and no trace, and waits of the host are those for which CUDA's runtime was called.
bool on_gpu();
/// What the tests run on: kType, or CUDA.
inline c10::DeviceType tested_type() { return on_gpu() ? c10::DeviceType::CUDA : kType; }
/// "standin:index", or "cuda:index"
inline c10::Device device(int64_t index = 0) { return {tested_type(), static_cast<c10::DeviceIndex>(index)}; }
/// So many there are.
int64_t devices();

/// Once, before anything else: it cannot be taken back, and autograd counts the devices at the first backward.
void install(int devices, size_t bytes_of_each);
/// Until every stream has done all it was given; before main() ends, and kernels lose LibTorch under their feet.
void finish();

/// How often the host waited for this device: item(), copies that block, synchronize, nonzero ...
int64_t host_waits(c10::DeviceIndex device);
/// Those of the calling thread, for any device: a thread beside it may wait as it likes.
int64_t host_waits_here();

/// Copies to this device from memory of the host that is not pinned: on a GPU the host waits in them.
int64_t pageable_uploads(c10::DeviceIndex device);
/// How often pinned memory was allocated. What is freed is overwritten at once.
int64_t pinned_allocations();

/// Accesses that nothing orders (no event, no wait of the host), a line each, since the last call. Independent of
/// timing: one run without any delay finds them.
std::vector<std::string> take_races();

/// Which streams are slow: main the default ones, side the others.
enum class Slow { all, main, side };
/// From now on every job of the slow streams first sleeps for half of this time to all of it. 0 disables the delay.
void set_delay(int microseconds, Slow slow = Slow::all);

/// Collectives that c10d calls with asyncOp = false: on the caller's stream and without a Work, as NCCL's. Else on the
/// side stream with a Work to wait for, like all others: so do backends that do not know asyncOp.
void set_on_callers_stream(bool on);

/// The device holds no more than this from now on.
void set_limit(c10::DeviceIndex device, size_t bytes);

/// One job as the host gave it to a stream.
struct Launch {
  std::string what;             ///< the operator
  c10::DeviceIndex device = 0;  ///< of the stream
  bool side = false;            ///< not on the default stream
  int stream = 0;               ///< number of the stream, of all devices
  uint64_t job = 0;             ///< its number in that stream
  std::vector<uint64_t> after;  ///< by number of the stream: the last job that this one waits for
};
/// Whether the streams' order or events make b wait for a.
bool ordered(const Launch& a, const Launch& b);
/// From now on every launch is kept.
void start_trace();
/// Ends it; in the order of the host.
std::vector<Launch> take_trace();

/// Operators with shapes unknown in advance, for which the host waited for the device's stream.
std::vector<std::string> never_deferred();

}  // namespace stand_in

// SPDX-License-Identifier: Apache-2.0
// Evaluation of a recording: where a step's time was spent.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace accelerate::profile {

/// Something that ran on a thread of the host, or a kernel, copy or fill on a stream of a device, from begin to end,
/// nanoseconds.
struct Span {
  std::string name{};
  uint64_t thread = 0;
  int64_t begin = 0, end = 0;
  bool is_async = false;   ///< ends on another thread: no part of what encloses it
  bool on_device = false;  ///< it has no thread and is no operator
  bool is_copy = false;    ///< on a device: a copy or a fill, which computes nothing
  uint64_t number = 0;     ///< number of the operator; on a device, of the operator that launched the work; 0 if none
  uint64_t flops = 0;
};

struct OperatorTime {
  std::string name{};
  int64_t calls = 0;
  int64_t self_ns = 0;   ///< without called operators
  int64_t total_ns = 0;  ///< with it
  /// Of the kernels, copies and fills on the device that it started itself, not by an operator it calls; those that ran
  /// at the same time on two streams count both.
  int64_t device_ns = 0;
  uint64_t flops = 0;  ///< floating point operations, where LibTorch knows a formula

  bool operator==(const OperatorTime&) const = default;
};

struct TraceSummary {
  int64_t steps = 0;
  std::vector<int64_t> step_ns{};         ///< of each, in their order
  int64_t length_ns = 0;                  ///< from the first step's begin to the last one's end
  int64_t data_wait_ns = 0;               ///< of the loop, for a loader's next batch
  int64_t communication_ns = 0;           ///< at least one collective ran: on the device, if any did there
  int64_t overlapped_ns = 0;              ///< ... while operators computed: kernels, if a device ran any
  int64_t device_busy_ns = 0;             ///< time in the steps in which the device executed anything; 0 on the CPU
  int64_t device_ns = 0;                  ///< of all that it did, also what no operator started: a graph's replay
  std::vector<OperatorTime> operators{};  ///< longest time on the device first, then longest self time
  uint64_t flops = 0;                     ///< total; 0 if not counted
  double peak_flops_per_s = 0.0;          ///< of the device; 0 if unknown
  int64_t peak_allocated_bytes = 0;       ///< of the device, when the recording ended; 0 on the CPU
  int64_t peak_resident_bytes = 0;        ///< of the process

  [[nodiscard]] double flops_per_s() const;
  /// Model FLOPs utilisation, 0 to 1: computed FLOPs divided by the device's peak. Nothing if either is unknown.
  [[nodiscard]] std::optional<double> mfu() const;
};

/// Names that PyTorch's tools know, and ours.
inline constexpr const char* kStepSpan = "ProfilerStep#";
inline constexpr const char* kDataSpan = "accelerate::next_batch";

/// Collectives of c10d by its backends' titles, "gloo:all_reduce", "c10d::allreduce_", "nccl:broadcast",
/// "comm:all_reduce" of our own over MPI.
[[nodiscard]] bool is_communication(const std::string& name);
/// Kernels of NCCL and RCCL: "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclKernel_Broadcast...".
[[nodiscard]] bool is_communication_kernel(const std::string& name);

/// Operations of a convolution's backward, for which LibTorch has no formula: each of the two gradients, of the input
/// and of the weight, takes as many as the forward; both are counted.
/// grad_output [B, C_out, ...], weight [C_out, C_in / groups, ...]
[[nodiscard]] uint64_t flops_of_convolution_backward(std::span<const int64_t> grad_output,
                                                     std::span<const int64_t> weight);

/// Pure.
[[nodiscard]] TraceSummary summarize(const std::vector<Span>& spans);

/// Console table: one line with the shares of time, then the longest operators.
/// \param rows  Maximum number of operators.
[[nodiscard]] std::string summary_table(const TraceSummary& summary, int64_t rows);

}  // namespace accelerate::profile

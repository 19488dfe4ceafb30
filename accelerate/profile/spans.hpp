// SPDX-License-Identifier: Apache-2.0
// Evaluates a recording: time shares of a step.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace accelerate::profile {

/// A range on a host thread, or a kernel, copy or fill on a device stream. Times are in nanoseconds.
struct Span {
  std::string name{};
  uint64_t thread = 0;
  int64_t begin = 0, end = 0;
  bool is_async = false;   ///< ends on another thread, so it is not nested in the enclosing range
  bool on_device = false;  ///< device work, without a thread and not an operator
  bool is_copy = false;    ///< a copy or fill on a device
  uint64_t number = 0;     ///< number of the operator; on a device, of the operator that launched the work; 0 if none
  uint64_t flops = 0;
};

struct OperatorTime {
  std::string name{};
  int64_t calls = 0;
  int64_t self_ns = 0;   ///< without called operators
  int64_t total_ns = 0;  ///< including called operators
  /// Device time of the kernels, copies and fills that it launched itself, without those of called operators.
  /// Concurrent work on two streams counts twice.
  int64_t device_ns = 0;
  uint64_t flops = 0;  ///< floating-point operations, if LibTorch has a formula

  bool operator==(const OperatorTime&) const = default;
};

struct TraceSummary {
  int64_t steps = 0;
  std::vector<int64_t> step_ns{};  ///< duration of each step, in order
  int64_t length_ns = 0;           ///< total time of the steps, without gaps between them
  int64_t data_wait_ns = 0;        ///< time in which the loop waited for the next batch
  int64_t communication_ns = 0;    ///< time with at least one collective: on the device, if any ran there
  int64_t overlapped_ns = 0;       ///< part of it in which operators computed: kernels, if any ran on a device
  int64_t device_busy_ns = 0;      ///< time within the steps in which the device was active; 0 on the CPU
  int64_t device_ns = 0;  ///< sum over all device work, including work without an operator, such as graph replays
  std::vector<OperatorTime> operators{};  ///< sorted by device time, then by self time, longest first
  uint64_t flops = 0;                     ///< total; 0 if not counted
  double peak_flops_per_s = 0.0;          ///< of the device; 0 if unknown
  int64_t peak_allocated_bytes = 0;       ///< of the device, at the end of the recording; 0 on the CPU
  int64_t peak_resident_bytes = 0;        ///< of the process

  [[nodiscard]] double flops_per_s() const;
  /// Model FLOPs utilisation, 0 to 1: computed FLOPs divided by the device's peak. Nothing if either is unknown.
  [[nodiscard]] std::optional<double> mfu() const;
};

/// Range names: PyTorch's for steps, the library's for waits for data.
inline constexpr const char* kStepSpan = "ProfilerStep#";
inline constexpr const char* kDataSpan = "accelerate::next_batch";

/// True for names of collectives: c10d's titles ("gloo:all_reduce", "c10d::allreduce_", "nccl:broadcast"), and
/// "comm:all_reduce" of this library's MPI backend.
[[nodiscard]] bool is_communication(const std::string& name);
/// True for kernels of NCCL and RCCL: "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclKernel_Broadcast...".
[[nodiscard]] bool is_communication_kernel(const std::string& name);

/// Returns the floating-point operations of a convolution's backward, for which LibTorch has no formula. Each of the
/// two gradients (input and weight) costs as much as the forward.
/// \param grad_output  Shape [B, C_out, ...].
/// \param weight       Shape [C_out, C_in / groups, ...].
[[nodiscard]] uint64_t flops_of_convolution_backward(std::span<const int64_t> grad_output,
                                                     std::span<const int64_t> weight);

/// Evaluates the spans of one rank. Pure function.
[[nodiscard]] TraceSummary summarize(const std::vector<Span>& spans);

/// Console table: one line with the shares of time, then the longest operators.
/// \param rows  Maximum number of operators.
[[nodiscard]] std::string summary_table(const TraceSummary& summary, int64_t rows);

}  // namespace accelerate::profile

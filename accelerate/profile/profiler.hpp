// SPDX-License-Identifier: Apache-2.0
// LibTorch's profiler for a part of a training loop.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "accelerate/comm/group.hpp"
#include "accelerate/profile/schedule.hpp"
#include "accelerate/profile/spans.hpp"

namespace accelerate::profile {

class NvtxRanges;
class Profiler;

/// Names and meanings follow torch.profiler and Hugging Face Accelerate's ProfileKwargs.
struct ProfileOptions {
  /// Steps to record; step() ends each step. If unset, all steps until stop() are recorded.
  std::optional<ProfileSchedule> schedule_option{};
  /// Called on each rank after a recording has ended and its trace has been written.
  std::function<void(Profiler&)> on_trace_ready{};
  bool record_shapes = false;   ///< shapes of operator inputs
  bool profile_memory = false;  ///< memory allocations of operators
  /// If true, counts floating-point operations of matrix products, convolutions (forward and backward), and elementwise
  /// sums and products.
  bool with_flops = false;
  /// Peak floating-point operations per second of this rank's device in the dtype of the forward, from its data sheet
  /// (NVIDIA H100 SXM in bfloat16: 989e12). If above 0, the table shows the MFU, and with_flops is implied.
  double peak_flops_per_s = 0.0;
  /// If true, steps, operators and waits for data are also NVTX ranges for Nsight Systems (nsys profile) while the
  /// profiler records. Requires a LibTorch build with CUDA, but no GPU; in other builds one message is logged.
  bool nvtx = false;
  /// Output folder. Each rank writes its recording to <dir>/profile_<rank>.json, for chrome://tracing and
  /// ui.perfetto.dev; a later recording overwrites an earlier one. stop() merges the traces of all ranks into
  /// <dir>/profile.json and writes <dir>/profile_summary.json, from which accelerate_report creates a page. If empty,
  /// no files are written.
  std::string output_trace_dir{};
};

/// Records operators during its lifetime according to the schedule. In a loop, step() ends each step:
///
///   auto profiler = accelerator.profile({.schedule_option = ProfileSchedule{.wait = 1, .warmup = 1, .active = 3}});
///   for (auto& batch : loader) { ...; profiler.step(); }
///   profiler.stop();
///   accelerator.print("{}", profiler.table());
///
/// Records the constructing thread, including backward and LibTorch's worker threads. Only one profiler can record in a
/// process. Not thread-safe.
class Profiler {
 public:
  /// \throws Error (usage) for an invalid schedule, and if another profiler is active in this process.
  /// \throws Error (io) if a folder cannot be created.
  Profiler(const ProfileOptions& options, comm::Group group, c10::Device device);
  /// Aborts an active recording without a trace, because a missing stop() means that the program is failing.
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Ends a step. The host waits for the device only at the last step of a recording.
  /// \throws Error (io) if a trace cannot be written.
  void step();
  /// Ends profiling and any active recording. With an output_trace_dir the call is collective: rank 0 merges the traces
  /// of all ranks that it can read and reports missing or invalid ones. Exceptions of on_trace_ready are rethrown
  /// afterwards. A second call has no effect.
  void stop();

  /// Number of completed recordings.
  [[nodiscard]] int64_t recordings() const { return recordings_; }
  /// Summary of the last completed recording.
  [[nodiscard]] const TraceSummary& summary() const { return summary_; }
  [[nodiscard]] std::string table(int64_t rows = 15) const { return summary_table(summary_, rows); }

 private:
  struct Recording;

  void apply(ProfileAction next);
  void begin_step();
  void finish_recording(bool keep);
  [[nodiscard]] ProfileAction action(int64_t step) const;
  [[nodiscard]] std::string trace_file(int64_t rank) const;
  void merge_traces() const;
  void write_summaries() const;
  void write_file(const std::string& name, const std::string& text) const;

  ProfileOptions options_;
  comm::Group group_;
  c10::Device device_;
  std::unique_ptr<Recording> recording_;
  std::unique_ptr<NvtxRanges> ranges_;
  ProfileAction now_ = ProfileAction::none;
  int64_t step_ = 0;
  int64_t recordings_ = 0;
  bool stopped_ = false;
  TraceSummary summary_;
};

}  // namespace accelerate::profile

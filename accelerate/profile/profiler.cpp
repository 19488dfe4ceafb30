// SPDX-License-Identifier: Apache-2.0
#include "accelerate/profile/profiler.hpp"

#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <kineto/ActivityType.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <system_error>

#include "accelerate/base/exception_text.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/comm/error_context.hpp"
#include "accelerate/profile/memory.hpp"
#include "accelerate/profile/merge_traces.hpp"
#include "accelerate/profile/nvtx.hpp"
#include "accelerate/profile/summary_json.hpp"

namespace accelerate::profile {
namespace {

namespace kineto = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

/// LibTorch supports one active profiler per process.
std::atomic_flag& is_profiler_active() {
  static std::atomic_flag taken = ATOMIC_FLAG_INIT;
  return taken;
}

std::set<ActivityType> activities_of(c10::Device device) {
  std::set<ActivityType> activities{ActivityType::CPU};
  if (device.is_cuda()) activities.insert(ActivityType::CUDA);
  if (device.is_xpu()) activities.insert(ActivityType::XPU);
  if (device.is_privateuseone()) activities.insert(ActivityType::PrivateUse1);
  return activities;
}

bool counts_flops(const ProfileOptions& options) { return options.with_flops || options.peak_flops_per_s > 0; }

torch::profiler::impl::ProfilerConfig config_of(const ProfileOptions& options) {
  const bool with_flops = counts_flops(options);
  return torch::profiler::impl::ProfilerConfig(torch::profiler::impl::ProfilerState::KINETO,
                                               options.record_shapes || with_flops, options.profile_memory,
                                               /*with_stack=*/false, with_flops);
}

uint64_t flops_of(const kineto::KinetoEvent& event) {
  if (event.name() != "aten::convolution_backward" || event.shapes().size() < 3) return event.flops();
  return flops_of_convolution_backward(event.shapes()[0], event.shapes()[2]);  // (grad_output, input, weight, ...)
}

bool is(libkineto::ActivityType type, const kineto::KinetoEvent& event) {
  return event.activityType() == static_cast<uint8_t>(type);
}

bool is_copy(const kineto::KinetoEvent& event) {
  return is(libkineto::ActivityType::GPU_MEMCPY, event) || is(libkineto::ActivityType::GPU_MEMSET, event);
}

/// True for kernels and copies. False for the host ranges that LibTorch repeats among a device's events.
bool has_activity(const kineto::KinetoEvent& event) {
  return is(libkineto::ActivityType::CONCURRENT_KERNEL, event) || is_copy(event);
}

/// Device work is linked to the operator that launched it. Runtime calls and the profiler's own work have ids of other
/// sequences, so they get 0.
uint64_t number_of(const kineto::KinetoEvent& event, bool on_device) {
  if (on_device) return event.linkedCorrelationId();
  const bool is_operator =
      is(libkineto::ActivityType::CPU_OP, event) || is(libkineto::ActivityType::USER_ANNOTATION, event);
  return is_operator ? event.correlationId() : 0;
}

std::vector<Span> spans_of(const kineto::ProfilerResult& result, bool with_flops) {
  std::vector<Span> spans;
  for (const auto& event : result.events()) {
    const bool on_device = event.deviceType() != c10::DeviceType::CPU;
    if (event.endNs() < event.startNs() || (on_device && !has_activity(event))) continue;
    spans.push_back({.name = event.name(),
                     .thread = event.startThreadId(),
                     .begin = static_cast<int64_t>(event.startNs()),
                     .end = static_cast<int64_t>(event.endNs()),
                     .is_async = event.isAsync(),
                     .on_device = on_device,
                     .is_copy = on_device && is_copy(event),
                     .number = number_of(event, on_device),
                     .flops = with_flops && !on_device ? flops_of(event) : 0});
  }
  return spans;
}

/// True if a range name contains quotes. LibTorch does not escape them, so the trace would be invalid JSON.
bool has_quotes(const kineto::ProfilerResult& result) {
  return std::ranges::any_of(result.events(),
                             [](const auto& event) { return event.name().find('"') != std::string::npos; });
}

std::string read_to_end(std::ifstream& file) { return {std::istreambuf_iterator<char>(file), {}}; }

void escape_names(const std::string& path) {
  std::ifstream written(path, std::ios::binary);
  if (!written) return;
  const std::string escaped = with_escaped_names(read_to_end(written));
  std::ofstream(path, std::ios::binary) << escaped;  // if this fails, stop() reports invalid JSON
}

void check_options(const ProfileOptions& options, const RankContext& place) {
  if (!(options.peak_flops_per_s >= 0) || std::isinf(options.peak_flops_per_s)) {
    base::fail(ErrorKind::usage, place, "profile", "peak_flops_per_s is {}, must be a number of operations, or 0",
               options.peak_flops_per_s);
  }
}

void check_schedule(const ProfileSchedule& schedule, const RankContext& place) {
  const auto at_least = [&](const char* name, int64_t value, int64_t lowest) {
    if (value < lowest) {
      base::fail(ErrorKind::usage, place, "profile", "schedule_option.{} is {}, must be at least {}", name, value,
                 lowest);
    }
  };
  at_least("skip_first", schedule.skip_first, 0);
  at_least("wait", schedule.wait, 0);
  at_least("warmup", schedule.warmup, 0);
  at_least("active", schedule.active, 1);
  at_least("repeat", schedule.repeat, 0);
}

}  // namespace

/// A LibTorch profiler session, from preparation to end.
struct Profiler::Recording {
  Recording(const ProfileOptions& options, c10::Device the_device)
      : device(the_device), config(config_of(options)), activities(activities_of(the_device)) {
    kineto::prepareProfiler(config, activities);
  }
  ~Recording() {
    try {
      if (!running && !over) start();  // a prepared recording can only end after it has started
      if (!over) (void)stop();
    } catch (...) {
    }
  }
  void start() {
    kineto::enableProfiler(config, activities);
    running = true;
  }
  /// Waits for the device first, as torch.profiler does, because work that is unfinished at the end has no end time.
  std::unique_ptr<kineto::ProfilerResult> stop_when_done() {
    const auto failure = base::capture_exception([&] {
      if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
    });
    auto result = stop();
    if (failure) std::rethrow_exception(failure);
    return result;
  }
  std::unique_ptr<kineto::ProfilerResult> stop() {
    step.reset();
    over = true;
    return kineto::disableProfiler();
  }

  c10::Device device;
  torch::profiler::impl::ProfilerConfig config;
  std::set<ActivityType> activities;
  bool running = false, over = false;
  std::optional<at::RecordFunction> step;
};

Profiler::Profiler(const ProfileOptions& options, comm::Group group, c10::Device device)
    : options_(options), group_(std::move(group)), device_(device) {
  check_options(options_, group_.place());
  if (options_.schedule_option) check_schedule(*options_.schedule_option, group_.place());
  if (!options_.output_trace_dir.empty()) {
    std::error_code failed;
    std::filesystem::create_directories(options_.output_trace_dir, failed);
    if (failed) {
      base::fail(ErrorKind::io, group_.place(), "profile", "{} cannot be made: {}; choose another output_trace_dir",
                 options_.output_trace_dir, failed.message());
    }
    std::filesystem::remove(trace_file(group_.rank()), failed);  // left over from an earlier run
  }
  if (is_profiler_active().test_and_set()) {
    base::fail(ErrorKind::usage, group_.place(), "profile",
               "another profiler is at work in this process, which can have one; stop() it first");
  }
  try {
    apply(action(0));
  } catch (...) {
    is_profiler_active().clear();
    throw;
  }
}

Profiler::~Profiler() {
  if (stopped_) return;
  if (recording_) recording_->step.reset();
  ranges_.reset();
  recording_.reset();
  is_profiler_active().clear();
}

ProfileAction Profiler::action(int64_t step) const {
  return options_.schedule_option ? action_at(step, *options_.schedule_option) : ProfileAction::record;
}

void Profiler::step() {
  if (stopped_) return;
  if (recording_) recording_->step.reset();
  ++step_;
  const auto failure = base::capture_exception([&] {  // an exception of on_trace_ready does not stop the schedule
    if (now_ == ProfileAction::record_and_save) finish_recording(true);
  });
  if (!stopped_) apply(action(step_));  // on_trace_ready may have stopped it
  if (failure) std::rethrow_exception(failure);
}

void Profiler::apply(ProfileAction next) {
  now_ = next;
  const bool records = next == ProfileAction::record || next == ProfileAction::record_and_save;
  if (options_.nvtx && records != (ranges_ != nullptr)) {
    ranges_ = records ? std::make_unique<NvtxRanges>(group_.place()) : nullptr;
  }
  if (next == ProfileAction::none) return;
  if (!recording_) recording_ = std::make_unique<Recording>(options_, device_);
  if (next == ProfileAction::warmup) return;
  if (!recording_->running) recording_->start();
  begin_step();
}

void Profiler::begin_step() {
  recording_->step.emplace(at::RecordScope::USER_SCOPE);
  recording_->step->before(kStepSpan + std::to_string(step_));
}

void Profiler::finish_recording(bool keep) {
  if (!recording_) return;
  if (!keep || !recording_->running) {
    recording_.reset();
    return;
  }
  const auto result = recording_->stop_when_done();
  recording_.reset();
  summary_ = summarize(spans_of(*result, counts_flops(options_)));
  summary_.peak_flops_per_s = options_.peak_flops_per_s;
  const MemoryFigures memory = memory_figures(device_);
  summary_.peak_allocated_bytes = memory.peak_allocated_bytes;
  summary_.peak_resident_bytes = memory.peak_resident_bytes;
  ++recordings_;
  if (!options_.output_trace_dir.empty()) {
    result->save(trace_file(group_.rank()));
    if (has_quotes(*result)) escape_names(trace_file(group_.rank()));
  }
  if (options_.on_trace_ready) options_.on_trace_ready(*this);
}

void Profiler::stop() {
  if (std::exchange(stopped_, true)) return;
  if (recording_) recording_->step.reset();  // must be closed last
  ranges_.reset();
  const auto failure =
      base::capture_exception([&] {  // an exception (disk, on_trace_ready) must not keep the other ranks waiting
        finish_recording(now_ == ProfileAction::record || now_ == ProfileAction::record_and_save);
      });
  is_profiler_active().clear();
  const auto meet = [&](std::string_view what) {
    comm::with_operation_context("profile", what, group_.place(), [&] { group_.barrier(); });
  };
  if (!options_.output_trace_dir.empty()) {
    meet("it is unknown whether the files of all ranks exist");
    try {
      if (group_.rank() == 0) merge_traces();
    } catch (const std::exception& error) {  // the other ranks wait
      base::log(base::LogLevel::warning, group_.place(), "profile: profile.json was not written: {}", error.what());
    }
    write_summaries();
    meet("it is unknown whether the merged files exist");
  }
  if (failure) std::rethrow_exception(failure);
}

void Profiler::write_summaries() const {
  const auto all =
      comm::with_operation_context("profile", "the ranks' summaries are not put together", group_.place(),
                                   [&] { return group_.all_gather_bytes(summary_json(summary_, group_.place())); });
  if (group_.rank() != 0) return;
  write_file("profile_summary.json", summaries_json(all));
}

void Profiler::write_file(const std::string& name, const std::string& text) const {
  const auto path = std::filesystem::path(options_.output_trace_dir) / name;
  std::ofstream file(path, std::ios::binary);
  file << text;
  if (!file.flush()) {
    base::log(base::LogLevel::warning, group_.place(), "profile: {} cannot be written", path.string());
  }
}

std::string Profiler::trace_file(int64_t rank) const {
  return std::filesystem::path(options_.output_trace_dir) / ("profile_" + std::to_string(rank) + ".json");
}

void Profiler::merge_traces() const {
  std::vector<RankTrace> traces;
  for (int64_t rank = 0; rank < group_.size(); ++rank) {
    std::ifstream file(trace_file(rank), std::ios::binary);
    if (file) {
      traces.push_back({.rank = rank, .json = read_to_end(file)});
    } else {
      base::log(base::LogLevel::warning, group_.place(),
                "profile: rank {}'s trace is not in {} here; profile.json is written without it", rank,
                options_.output_trace_dir);
    }
  }
  const auto merged = merged_trace(traces);
  for (const int64_t rank : merged.left_out) {
    base::log(
        base::LogLevel::warning, group_.place(),
        "profile: rank {}'s trace is not JSON with traceEvents: {} was cut, as on a full disk, or LibTorch wrote a "
        "text without escaping its quotes; profile.json is written without it",
        rank, trace_file(rank));
  }
  write_file("profile.json", merged.json);
}

}  // namespace accelerate::profile

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/profile/profiler.hpp"

#include <dlfcn.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "accelerate/base/log.hpp"
#include "tests/build_folder.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/testing.hpp"

using namespace accelerate::profile;

namespace {

struct Profiled {
  int64_t ready = 0;
  int64_t steps_in_last = 0;
};

/// Runs a hundred steps of one small matrix product with that schedule.
Profiled hundred_steps(const ProfileSchedule& schedule, const ProfileOptions& others = {}) {
  Profiled seen;
  ProfileOptions options = others;
  options.schedule_option = schedule;
  options.on_trace_ready = [&](Profiler& profiler) {
    ++seen.ready;
    seen.steps_in_last = profiler.summary().steps;
  };
  Profiler profiler(options, accelerate::comm::Group(), at::kCPU);
  const auto matrix = torch::ones({4, 4});
  for (int step = 0; step < 100; ++step) {
    (void)matrix.mm(matrix);
    profiler.step();
  }
  profiler.stop();
  CHECK(profiler.recordings() == seen.ready);
  return seen;
}

const OperatorTime* row_of(const TraceSummary& summary, const std::string& name) {
  for (const auto& row : summary.operators) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

/// Replaces CUDA's stubs during its lifetime and collects the NVTX ranges.
class KnownRanges final : public torch::profiler::impl::ProfilerStubs {
 public:
  using Impl = torch::profiler::impl::ProfilerStubs;
  KnownRanges() : before_(torch::profiler::impl::cudaStubs()) { torch::profiler::impl::registerCUDAMethods(this); }
  ~KnownRanges() override { torch::profiler::impl::registerCUDAMethods(const_cast<Impl*>(before_)); }

  void record(c10::DeviceIndex*, torch::profiler::impl::ProfilerVoidEventStub*, int64_t*) const override {}
  float elapsed(const torch::profiler::impl::ProfilerVoidEventStub*,
                const torch::profiler::impl::ProfilerVoidEventStub*) const override {
    return 0;
  }
  void mark(const char*) const override {}
  void rangePush(const char* name) const override {
    opened.push_back((open.empty() ? "" : open.back() + " > ") + name);
    open.push_back(opened.back());
  }
  void rangePop() const override {
    REQUIRE_FALSE(open.empty());
    open.pop_back();
  }
  bool enabled() const override { return is_there; }
  void onEachDevice(std::function<void(int)>) const override {}
  void synchronize() const override {}

  bool is_there = true;
  mutable std::vector<std::string> open, opened;

 private:
  const Impl* before_;
};

std::string refusal(const ProfileOptions& options) {
  try {
    const Profiler profiler(options, accelerate::comm::Group(), at::kCPU);
  } catch (const accelerate::Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a hundred steps have as many cycles as in Hugging Face Accelerate's cases, each with its active steps") {
  struct Case {
    ProfileSchedule schedule;
    int64_t recordings;
  };
  const std::vector<Case> cases{{{.wait = 1, .warmup = 1, .active = 2, .repeat = 1}, 1},
                                {{.wait = 2, .warmup = 2, .active = 2, .repeat = 2}, 2},
                                {{.skip_first = 1, .wait = 0, .warmup = 1, .active = 3, .repeat = 3}, 3},
                                {{.skip_first = 2, .wait = 3, .warmup = 2, .active = 1, .repeat = 1}, 1},
                                {{.wait = 1, .warmup = 0, .active = 1, .repeat = 5}, 5}};
  for (const auto& one : cases) {
    const auto seen = hundred_steps(one.schedule);
    CHECK(seen.ready == one.recordings);
    CHECK(seen.steps_in_last == one.schedule.active);
  }
}

TEST_CASE("a cycle that the end interrupts is kept, one that was only warmed up is not") {
  CHECK(hundred_steps({.skip_first = 95, .active = 10}).ready == 1);
  CHECK(hundred_steps({.skip_first = 95, .warmup = 10, .active = 10}).ready == 0);
  CHECK(hundred_steps({.skip_first = 1000}).ready == 0);
}

TEST_CASE("without a schedule everything is recorded until the end: operators with counts and FLOPs") {
  Profiler profiler({.with_flops = true}, accelerate::comm::Group(), at::kCPU);
  const auto weight = torch::ones({8, 8}, torch::requires_grad());
  for (int i = 0; i < 3; ++i) weight.mm(torch::ones({8, 8})).sum().backward();
  CHECK(profiler.recordings() == 0);
  profiler.stop();
  profiler.stop();
  profiler.step();
  REQUIRE(profiler.recordings() == 1);
  const auto* product = row_of(profiler.summary(), "aten::mm");
  REQUIRE(product != nullptr);
  CHECK(product->calls == 6);  // forward, and the weight's gradient in backward
  CHECK(product->flops == 6 * 2 * 8 * 8 * 8);
  CHECK(product->self_ns > 0);
  CHECK(product->total_ns >= product->self_ns);
  const std::string table = profiler.table();
  CHECK(table.starts_with("1 steps in "));
  CHECK(table.find("aten::mm ") != std::string::npos);
  CHECK(table.find(" GFLOP/s") != std::string::npos);
}

TEST_CASE("FLOPs of convolutions include the backward; with a peak there is an MFU") {
  Profiler profiler({.peak_flops_per_s = 1e15}, accelerate::comm::Group(), at::kCPU);
  torch::nn::Conv2d convolution(torch::nn::Conv2dOptions(3, 4, 3).bias(false));
  convolution(torch::ones({2, 3, 8, 8}, torch::requires_grad())).sum().backward();
  profiler.stop();
  const uint64_t forward = 2 * (2 * 4 * 6 * 6) * (3 * 3 * 3);
  const auto* backward = row_of(profiler.summary(), "aten::convolution_backward");
  REQUIRE(backward != nullptr);
  CHECK(backward->flops == 2 * forward);
  CHECK(profiler.summary().flops == 3 * forward);
  CHECK(profiler.summary().mfu().value() > 0);
  CHECK(profiler.table().find(", MFU 0.0 %\n") != std::string::npos);
}

TEST_CASE("with nvtx steps, operators and their backward are nested ranges while they are recorded") {
  const KnownRanges ranges;
  const auto weight = torch::ones({2, 2}, torch::requires_grad());
  Profiler profiler({.schedule_option = ProfileSchedule{.wait = 1, .active = 1, .repeat = 1}, .nvtx = true},
                    accelerate::comm::Group(), at::kCPU);
  for (int step = 0; step < 4; ++step) {
    weight.mm(weight).sum().backward();
    profiler.step();
    if (step == 0) CHECK(ranges.open == std::vector<std::string>{"ProfilerStep#1"});
    if (step == 1) CHECK(ranges.open.empty());
  }
  const auto& opened = ranges.opened;
  REQUIRE_FALSE(opened.empty());
  CHECK(opened.front() == "ProfilerStep#1");
  CHECK(std::all_of(opened.begin(), opened.end(), [](const auto& name) { return name.starts_with("ProfilerStep#1"); }));
  CHECK(std::count(opened.begin(), opened.end(), "ProfilerStep#1 > aten::mm") == 1);  // includes the ranges of backward
  CHECK(std::any_of(opened.begin(), opened.end(),
                    [](const auto& name) { return name.find("MmBackward0 > aten::mm") != std::string::npos; }));
  profiler.stop();
}

TEST_CASE("an NVTX listener in the process gets as many ends as beginnings") {
  if (!torch::profiler::impl::cudaStubs()->enabled()) return;  // LibTorch without NVTX, see the next test
  // As in Nsight Systems. NVTX looks for a listener at the first call in a process, which is here.
  const std::string listener = testing::build_folder() + "/nvtx_listener/libnvtx_listener.so";
  ::setenv("NVTX_INJECTION64_PATH", listener.c_str(), 1);
  CHECK(hundred_steps({.skip_first = 10, .active = 3, .repeat = 1}, {.nvtx = true}).ready == 1);
  ::unsetenv("NVTX_INJECTION64_PATH");
  void* const library = ::dlopen(listener.c_str(), RTLD_NOW | RTLD_NOLOAD);
  REQUIRE_MESSAGE(library != nullptr, "NVTX did not load it");
  const auto clear_wakeup = [&](const char* what) {
    return reinterpret_cast<int (*)()>(::dlsym(library, what))();
  };  // NOLINT
  CHECK(clear_wakeup("steps_begun") == 3);
  CHECK(clear_wakeup("products_begun") == 3);
  CHECK(clear_wakeup("ranges_begun") >= 6);
  CHECK(clear_wakeup("ranges_ended") == clear_wakeup("ranges_begun"));
  ::dlclose(library);
}

TEST_CASE("nvtx without CUDA in LibTorch only logs a line") {
  KnownRanges ranges;
  ranges.is_there = false;
  accelerate::base::reset_log_once();
  std::vector<std::string> lines;
  const auto before = accelerate::base::set_log_handler(
      [&](accelerate::base::LogLevel, std::string_view line) { lines.emplace_back(line); });
  CHECK(hundred_steps({.repeat = 2}, {.nvtx = true}).ready == 2);
  accelerate::base::set_log_handler(before);
  CHECK(ranges.opened.empty());
  CHECK(lines ==
        std::vector<std::string>{
            "profile: nvtx is true, and this LibTorch was built without CUDA, which has NVTX: no ranges are recorded"});
}

TEST_CASE("a rank's trace and the merged trace are files of this run only") {
  const testing::TemporaryFolder folder;
  const auto traces = folder.path / "traces";
  std::filesystem::create_directories(traces);
  std::ofstream(traces / "profile_0.json") << "of an earlier run";
  (void)hundred_steps({.skip_first = 5, .active = 2, .repeat = 1}, {.output_trace_dir = traces});
  for (const char* name : {"profile_0.json", "profile.json"}) {
    std::ifstream file(traces / name);
    const auto trace = nlohmann::json::parse(file);
    std::vector<std::string> steps;
    for (const auto& event : trace.at("traceEvents")) {
      const auto text = event.value("name", "");
      if (text.starts_with("ProfilerStep#")) steps.push_back(text);
    }
    CHECK(steps == std::vector<std::string>{"ProfilerStep#5", "ProfilerStep#6"});
  }
  const auto summary = nlohmann::json::parse(testing::text_of(traces / "profile_summary.json"));
  REQUIRE(summary.at("ranks").size() == 1);
  CHECK(summary.at("ranks")[0].at("step_ms").size() == 2);
  CHECK(summary.at("ranks")[0].at("peak_resident_bytes").get<int64_t>() > int64_t{1} << 20);
  CHECK(summary.at("ranks")[0].at("peak_allocated_bytes") == 0);
}

TEST_CASE("quotes in a range's name are escaped in the rank's trace and the merged trace") {
  const testing::TemporaryFolder folder;
  const std::string name = "layer \"a\", \"b\"";
  Profiler profiler({.output_trace_dir = folder.path}, accelerate::comm::Group(), at::kCPU);
  {
    RECORD_USER_SCOPE(name);
    (void)torch::ones({2}).add(1);
  }
  profiler.stop();
  for (const char* file : {"profile_0.json", "profile.json"}) {
    const auto trace = nlohmann::json::parse(testing::text_of(std::filesystem::path(folder.path) / file));
    CHECK(std::any_of(trace.at("traceEvents").begin(), trace.at("traceEvents").end(),
                      [&](const auto& event) { return event.value("name", "") == name; }));
  }
}

TEST_CASE("an invalid JSON trace is logged, and the rest is written") {
  const testing::TemporaryFolder folder;
  const auto own = std::filesystem::path(folder.path) / "profile_0.json";
  accelerate::base::reset_log_once();
  std::vector<std::string> lines;
  const auto before = accelerate::base::set_log_handler(
      [&](accelerate::base::LogLevel, std::string_view line) { lines.emplace_back(line); });
  Profiler profiler({.on_trace_ready = [&](Profiler&) { std::ofstream(own) << R"({"traceEvents": [)"; },
                     .output_trace_dir = folder.path},
                    accelerate::comm::Group(), at::kCPU);
  (void)torch::ones({2}).add(1);
  profiler.stop();
  accelerate::base::set_log_handler(before);
  CHECK(lines == std::vector<std::string>{"profile: rank 0's trace is not JSON with traceEvents: " + own.string() +
                                          " was cut, as on a full disk, or LibTorch wrote a text without escaping its "
                                          "quotes; profile.json is written without it"});
  const auto json = [&](const char* name) {
    return nlohmann::json::parse(testing::text_of(std::filesystem::path(folder.path) / name));
  };
  CHECK(json("profile.json").at("traceEvents").empty());
  CHECK(json("profile_summary.json").at("ranks").size() == 1);
}

TEST_CASE("record_shapes and profile_memory add shapes and allocations to the trace on request") {
  const testing::TemporaryFolder folder;
  for (const bool requested : {false, true}) {
    CAPTURE(requested);
    Profiler profiler({.record_shapes = requested, .profile_memory = requested, .output_trace_dir = folder.path},
                      accelerate::comm::Group(), at::kCPU);
    (void)torch::ones({4, 6}).mm(torch::ones({6, 2}));
    profiler.stop();
    const auto trace = nlohmann::json::parse(testing::text_of(std::filesystem::path(folder.path) / "profile_0.json"));
    bool shapes = false, allocations = false;
    for (const auto& event : trace.at("traceEvents")) {
      const auto name = event.value("name", "");
      if (name == "[memory]") allocations = true;
      if (name != "aten::mm" || !event.contains("args") || !event["args"].contains("Input Dims")) continue;
      shapes = event["args"]["Input Dims"] == nlohmann::json{{4, 6}, {6, 2}};
    }
    CHECK(shapes == requested);
    CHECK(allocations == requested);
  }
}

TEST_CASE("invalid schedules and peaks, and a folder that cannot be created, are refused") {
  CHECK(refusal({.peak_flops_per_s = -1}) == "profile: peak_flops_per_s is -1, must be a number of operations, or 0");
  CHECK(refusal({.schedule_option = ProfileSchedule{.active = 0}}) ==
        "profile: schedule_option.active is 0, must be at least 1");
  CHECK(refusal({.schedule_option = ProfileSchedule{.wait = -1}}) ==
        "profile: schedule_option.wait is -1, must be at least 0");
  const testing::TemporaryFolder folder;
  std::ofstream(folder.path / "file") << "x";
  CHECK(refusal({.output_trace_dir = folder.path / "file" / "traces"}) ==
        "profile: " + (folder.path / "file" / "traces").string() +
            " cannot be made: Not a directory; choose another output_trace_dir");
}

TEST_CASE("a second profiler in a process is refused until the first one has ended in any way") {
  {
    const Profiler first({}, accelerate::comm::Group(), at::kCPU);
    CHECK(refusal({}) == "profile: another profiler is at work in this process, which can have one; stop() it first");
  }
  CHECK(refusal({}).empty());
  CHECK(refusal({.schedule_option = ProfileSchedule{.warmup = 1}}).empty());  // ends during the warm-up
  CHECK(hundred_steps({.repeat = 1}).ready == 1);
}

TEST_CASE("cycles after an exception of on_trace_ready keep their positions") {
  for (const int64_t wait : {0, 2}) {
    CAPTURE(wait);
    std::vector<int> ready;
    int step = 0;
    Profiler profiler({.schedule_option = ProfileSchedule{.wait = wait, .active = 1},
                       .on_trace_ready =
                           [&](Profiler&) {
                             ready.push_back(step);
                             if (ready.size() == 1) throw 7;
                           }},
                      accelerate::comm::Group(), at::kCPU);
    for (step = 1; step <= 9; ++step) {
      try {
        profiler.step();
      } catch (int) {
        CHECK(ready.size() == 1);
      }
    }
    CHECK(ready == (wait == 0 ? std::vector{1, 2, 3, 4, 5, 6, 7, 8, 9} : std::vector{3, 6, 9}));
  }
}

TEST_CASE("on_trace_ready may stop the profiler: later steps are not recorded, and another profiler may start") {
  int ready = 0;
  Profiler profiler({.schedule_option = ProfileSchedule{.active = 1},
                     .on_trace_ready =
                         [&](Profiler& its) {
                           ++ready;
                           its.stop();
                         }},
                    accelerate::comm::Group(), at::kCPU);
  for (int step = 0; step < 3; ++step) profiler.step();
  CHECK(ready == 1);
  CHECK(profiler.recordings() == 1);
  CHECK(hundred_steps({.repeat = 1}).ready == 1);
}

TEST_CASE("step() throws the exception of on_trace_ready, and another profiler may start") {
  {
    Profiler profiler({.schedule_option = ProfileSchedule{}, .on_trace_ready = [](Profiler&) { throw 7; }},
                      accelerate::comm::Group(), at::kCPU);
    CHECK_THROWS_AS(profiler.step(), int);
  }
  CHECK(hundred_steps({.repeat = 1}).ready == 1);
}

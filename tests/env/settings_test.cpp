// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/settings.hpp"

#include <doctest/doctest.h>

#include "accelerate/base/log.hpp"

namespace env = accelerate::env;
namespace base = accelerate::base;
using accelerate::ErrorKind;
using env::Config;
using env::GivenSettings;
using env::Settings;
using env::Variables;
using std::chrono::seconds;

namespace {

/// Warnings of one resolution.
std::vector<std::string> warnings(const GivenSettings& given, const Variables& variables, const Config& config,
                                  const accelerate::RankContext& place = {}) {
  std::vector<std::string> lines;
  base::reset_log_once();
  const auto before = base::set_log_handler([&](base::LogLevel, std::string_view line) { lines.emplace_back(line); });
  env::resolve_settings(given, variables, config, place);
  base::set_log_handler(before);
  return lines;
}

std::pair<ErrorKind, std::string> refusal(const GivenSettings& given, const Variables& variables,
                                          const Config& config = {}) {
  try {
    env::resolve_settings(given, variables, config);
  } catch (const accelerate::Error& error) {
    return {error.kind(), error.what()};
  }
  return {ErrorKind::data, "no error"};
}

const Config file{.path = "/etc/job.yaml", .values = {{"gradient_accumulation_steps", "2"}}};
const Variables variable{{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "8"}};

}  // namespace

TEST_CASE("without any source the defaults are used") {
  CHECK(env::resolve_settings({}, {}, {}) == Settings{});
  CHECK(Settings{}.gradient_accumulation_steps == 1);
  CHECK(Settings{}.timeout == seconds(600));
  CHECK_FALSE(Settings{}.cpu);
}

TEST_CASE("code overrides the environment, the environment the file, the file the default") {
  CHECK(env::resolve_settings({.gradient_accumulation_steps = 3}, variable, file).gradient_accumulation_steps == 3);
  CHECK(env::resolve_settings({}, variable, file).gradient_accumulation_steps == 8);
  CHECK(env::resolve_settings({}, {}, file).gradient_accumulation_steps == 2);
}

TEST_CASE("backend auto is a choice like the others in every source") {
  const Variables gloo{{"ACCELERATE_BACKEND", "gloo"}};
  const Config names_gloo{.path = "f", .values = {{"backend", "gloo"}}};
  CHECK(env::resolve_settings({.backend = "auto"}, gloo, names_gloo).backend == "auto");
  CHECK(env::resolve_settings({}, {{"ACCELERATE_BACKEND", "auto"}}, names_gloo).backend == "auto");
  CHECK(env::resolve_settings({}, {}, {.path = "f", .values = {{"backend", "auto"}}}).backend == "auto");
  CHECK(warnings({.backend = "auto"}, gloo, {}) ==
        std::vector<std::string>{"settings: backend is auto from the code; not used: gloo in ACCELERATE_BACKEND"});
}

TEST_CASE("a given default value overrides weaker sources too") {
  CHECK(env::resolve_settings({.gradient_accumulation_steps = 1}, variable, {}).gradient_accumulation_steps == 1);
  CHECK_FALSE(env::resolve_settings({.cpu = false}, {{"ACCELERATE_USE_CPU", "1"}}, {}).cpu);
}

TEST_CASE("every setting can be set by code, by its variable and by the file") {
  const Settings expected{.gradient_accumulation_steps = 4,
                          .mixed_precision = env::Precision::bf16,
                          .cpu = true,
                          .backend = "gloo",
                          .timeout = seconds(7),
                          .debug = true,
                          .device = env::DeviceName{},
                          .threads_per_rank = 5,
                          .allow_shared_gpus = true,
                          .memory_format = env::MemoryFormat::channels_last,
                          .float32_matmul_precision = env::Float32MatmulPrecision::high,
                          .cudnn_benchmark = false};
  CHECK(env::resolve_settings({.gradient_accumulation_steps = 4,
                               .mixed_precision = env::Precision::bf16,
                               .cpu = true,
                               .backend = "gloo",
                               .timeout = seconds(7),
                               .debug = true,
                               .device = "cpu",
                               .threads_per_rank = 5,
                               .allow_shared_gpus = true,
                               .memory_format = env::MemoryFormat::channels_last,
                               .float32_matmul_precision = env::Float32MatmulPrecision::high,
                               .cudnn_benchmark = false},
                              {}, {}) == expected);
  CHECK(env::resolve_settings({},
                              {{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"},
                               {"ACCELERATE_MIXED_PRECISION", "bf16"},
                               {"ACCELERATE_USE_CPU", "yes"},
                               {"ACCELERATE_BACKEND", "gloo"},
                               {"ACCELERATE_TIMEOUT", "7"},
                               {"ACCELERATE_DEBUG_MODE", "on"},
                               {"ACCELERATE_TORCH_DEVICE", "cpu"},
                               {"OMP_NUM_THREADS", "5,2"},
                               {"ACCELERATE_ALLOW_SHARED_GPUS", "t"},
                               {"ACCELERATE_MEMORY_FORMAT", "channels_last"},
                               {"ACCELERATE_FLOAT32_MATMUL_PRECISION", "high"},
                               {"ACCELERATE_CUDNN_BENCHMARK", "no"}},
                              {}) == expected);
  CHECK(env::resolve_settings({}, {},
                              {.path = "f",
                               .values = {{"gradient_accumulation_steps", "4"},
                                          {"mixed_precision", "bf16"},
                                          {"cpu", "True"},
                                          {"backend", "gloo"},
                                          {"timeout", "7"},
                                          {"debug", "1"},
                                          {"torch_device", "cpu"},
                                          {"threads_per_rank", "5"},
                                          {"allow_shared_gpus", "yes"},
                                          {"memory_format", "channels_last"},
                                          {"float32_matmul_precision", "high"},
                                          {"cudnn_benchmark", "false"}}}) == expected);
}

TEST_CASE("a conflict is reported in one line on rank 0, equal values are not") {
  CHECK(warnings({.gradient_accumulation_steps = 3}, variable, {}) ==
        std::vector<std::string>{"settings: gradient_accumulation_steps is 3 from the code; not used: 8 in "
                                 "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"});
  CHECK(warnings({}, variable, file) ==
        std::vector<std::string>{
            "settings: gradient_accumulation_steps is 8 from ACCELERATE_GRADIENT_ACCUMULATION_STEPS; "
            "not used: 2 in /etc/job.yaml"});
  CHECK(warnings({.gradient_accumulation_steps = 3}, variable, file) ==
        std::vector<std::string>{"settings: gradient_accumulation_steps is 3 from the code; not used: 2 in "
                                 "/etc/job.yaml, 8 in ACCELERATE_GRADIENT_ACCUMULATION_STEPS"});
  CHECK(warnings({.timeout = seconds(5)}, {{"ACCELERATE_TIMEOUT", "6"}}, {}) ==
        std::vector<std::string>{"settings: timeout is 5 s from the code; not used: 6 s in ACCELERATE_TIMEOUT"});
  CHECK(warnings({.cpu = false}, {{"ACCELERATE_USE_CPU", "1"}}, {}) ==
        std::vector<std::string>{"settings: cpu is false from the code; not used: true in ACCELERATE_USE_CPU"});
  CHECK(warnings({.gradient_accumulation_steps = 8}, variable, {}).empty());
  CHECK(warnings({.gradient_accumulation_steps = 3}, {}, {}).empty());
  CHECK(warnings({.gradient_accumulation_steps = 3}, variable, {}, {.rank = 1, .world_size = 2, .host = "a"}).empty());
}

TEST_CASE("an invalid value is refused with its source") {
  using Refusal = std::pair<ErrorKind, std::string>;
  CHECK(refusal({}, {{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "many"}}) ==
        Refusal{ErrorKind::environment,
                "settings: ACCELERATE_GRADIENT_ACCUMULATION_STEPS is 'many', must be an integer, at least 1"});
  CHECK(refusal({}, {{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "0"}}) ==
        Refusal{ErrorKind::environment,
                "settings: ACCELERATE_GRADIENT_ACCUMULATION_STEPS is '0', must be an integer, at least 1"});
  CHECK(refusal({}, {{"ACCELERATE_USE_CPU", "maybe"}}) ==
        Refusal{ErrorKind::environment,
                "settings: ACCELERATE_USE_CPU is 'maybe', must be y, yes, t, true, on, 1, n, no, f, false, off or 0"});
  CHECK(refusal({}, {{"ACCELERATE_TIMEOUT", "0"}}) ==
        Refusal{ErrorKind::environment, "settings: ACCELERATE_TIMEOUT is '0', must be whole seconds, 1 to 1000000000"});
  CHECK(refusal({}, {{"OMP_NUM_THREADS", "all"}}) ==
        Refusal{ErrorKind::environment, "settings: OMP_NUM_THREADS is 'all', must be an integer, 1 to 65536"});
  CHECK(refusal({}, {}, {.path = "/etc/job.yaml", .values = {{"timeout", "soon"}}}) ==
        Refusal{ErrorKind::environment,
                "settings: timeout in /etc/job.yaml is 'soon', must be whole seconds, 1 to 1000000000"});
  CHECK(refusal({.gradient_accumulation_steps = 0}, {}) ==
        Refusal{ErrorKind::usage, "settings: gradient_accumulation_steps is 0, must be an integer, at least 1"});
  CHECK(refusal({.timeout = seconds(0)}, {}) ==
        Refusal{ErrorKind::usage, "settings: timeout is 0 s, must be whole seconds, 1 to 1000000000"});
  CHECK(refusal({.backend = ""}, {}) ==
        Refusal{ErrorKind::usage, "settings: backend is '', must be mpi, gloo or nccl"});
}

TEST_CASE("a value out of range is reported with the bound, which is itself allowed") {
  using Refusal = std::pair<ErrorKind, std::string>;
  CHECK(refusal({}, {{"ACCELERATE_TIMEOUT", "1000000001"}}) ==
        Refusal{ErrorKind::environment,
                "settings: ACCELERATE_TIMEOUT is '1000000001', must be whole seconds, 1 to 1000000000"});
  CHECK(
      refusal({.timeout = std::chrono::seconds::max()}, {}) ==
      Refusal{ErrorKind::usage, "settings: timeout is 9223372036854775807 s, must be whole seconds, 1 to 1000000000"});
  CHECK(refusal({}, {{"OMP_NUM_THREADS", "65537"}}) ==
        Refusal{ErrorKind::environment, "settings: OMP_NUM_THREADS is '65537', must be an integer, 1 to 65536"});
  CHECK(refusal({.threads_per_rank = 4'294'967'297}, {}) ==
        Refusal{ErrorKind::usage, "settings: threads_per_rank is 4294967297, must be an integer, 1 to 65536"});
  CHECK(env::resolve_settings({.timeout = seconds(1'000'000'000)}, {}, {}).timeout == seconds(1'000'000'000));
  CHECK(env::resolve_settings({.threads_per_rank = 65536}, {}, {}).threads_per_rank == 65536);
}

TEST_CASE("the error about a backend or device uses the name in its source") {
  using Refusal = std::pair<ErrorKind, std::string>;
  CHECK(refusal({}, {{"ACCELERATE_BACKEND", "nonsense"}}) ==
        Refusal{ErrorKind::environment, "settings: ACCELERATE_BACKEND is 'nonsense', must be mpi, gloo or nccl"});
  CHECK(refusal({.backend = "ucx"}, {}) ==
        Refusal{ErrorKind::usage, "settings: backend is 'ucx', must be mpi, gloo or nccl"});
  for (const std::string text : {"gpu0", "cuda:", "cuda:x", "cuda:-1", "cpu:1"}) {
    CHECK(refusal({.device = text}, {}) ==
          Refusal{ErrorKind::usage,
                  "settings: device is '" + text + "', must be cpu, cuda, cuda:N or another device of LibTorch's"});
    CHECK(refusal({}, {{"ACCELERATE_TORCH_DEVICE", text}}) ==
          Refusal{ErrorKind::environment, "settings: ACCELERATE_TORCH_DEVICE is '" + text +
                                              "', must be cpu, cuda, cuda:N or another device of LibTorch's"});
    CHECK(refusal({}, {}, {.path = "f", .values = {{"torch_device", text}}}) ==
          Refusal{ErrorKind::environment, "settings: torch_device in f is '" + text +
                                              "', must be cpu, cuda, cuda:N or another device of LibTorch's"});
  }
}

TEST_CASE("the stronger source decides between cpu and a GPU by name; cpu overrides within one source") {
  const Variables cuda{{"ACCELERATE_TORCH_DEVICE", "cuda"}};
  const Variables use_cpu{{"ACCELERATE_USE_CPU", "1"}};
  const Variables both{{"ACCELERATE_TORCH_DEVICE", "cuda"}, {"ACCELERATE_USE_CPU", "1"}};
  const Config file_cpu{.path = "f", .values = {{"cpu", "true"}}};
  const auto resolved = [](const GivenSettings& given, const Variables& variables, const Config& config) {
    const Settings settings = env::resolve_settings(given, variables, config);
    return std::pair{settings.cpu, settings.device};
  };
  using Pair = std::pair<bool, std::optional<env::DeviceName>>;
  const Pair cpu_holds{true, std::nullopt};
  CHECK(resolved({.cpu = true}, cuda, {}) == cpu_holds);
  CHECK(resolved({}, both, {}) == cpu_holds);
  CHECK(resolved({.cpu = true, .device = "cuda:1"}, {}, {}) == cpu_holds);
  CHECK(resolved({.device = "cuda:1"}, use_cpu, {}) == Pair{false, env::DeviceName{.type = "cuda", .index = 1}});
  CHECK(resolved({}, cuda, file_cpu) == Pair{false, env::DeviceName{.type = "cuda"}});
  CHECK(resolved({.cpu = false}, cuda, {}) == Pair{false, env::DeviceName{.type = "cuda"}});
  CHECK(resolved({.cpu = true, .device = "cpu"}, {}, {}) == Pair{true, env::DeviceName{}});

  CHECK(warnings({.cpu = true}, cuda, {}) ==
        std::vector<std::string>{
            "settings: cpu is true from the code; not used: torch_device cuda in ACCELERATE_TORCH_DEVICE"});
  CHECK(warnings({}, both, {}) ==
        std::vector<std::string>{"settings: cpu is true from ACCELERATE_USE_CPU; not used: torch_device cuda in "
                                 "ACCELERATE_TORCH_DEVICE"});
  CHECK(warnings({.device = "cuda:1"}, use_cpu, {}) ==
        std::vector<std::string>{"settings: device is cuda:1 from the code; not used: cpu true in ACCELERATE_USE_CPU"});
  CHECK(warnings({.cpu = true, .device = "cpu"}, {}, {}).empty());
}

TEST_CASE("a conflict is reported once for any number of Accelerators") {
  std::vector<std::string> lines;
  base::reset_log_once();
  const auto before = base::set_log_handler([&](base::LogLevel, std::string_view line) { lines.emplace_back(line); });
  for (int accelerator = 0; accelerator < 3; ++accelerator) {
    env::resolve_settings({.gradient_accumulation_steps = 3}, variable, {});
  }
  base::set_log_handler(before);
  CHECK(lines.size() == 1);
}

TEST_CASE("process-wide modes are unset by default, and a wrong name is refused with the choices") {
  const Settings none = env::resolve_settings({}, {}, {});
  CHECK_FALSE(none.float32_matmul_precision.has_value());
  CHECK_FALSE(none.cudnn_benchmark.has_value());
  CHECK(none.memory_format == env::MemoryFormat::contiguous);
  using Refusal = std::pair<ErrorKind, std::string>;
  CHECK(refusal({}, {{"ACCELERATE_MEMORY_FORMAT", "nhwc"}}) ==
        Refusal{ErrorKind::environment,
                "settings: ACCELERATE_MEMORY_FORMAT is 'nhwc', must be contiguous, channels_last or channels_last_3d"});
  CHECK(refusal({}, {{"ACCELERATE_FLOAT32_MATMUL_PRECISION", "tf32"}}) ==
        Refusal{ErrorKind::environment,
                "settings: ACCELERATE_FLOAT32_MATMUL_PRECISION is 'tf32', must be highest, high or medium"});
  CHECK(refusal({.float32_matmul_precision = static_cast<env::Float32MatmulPrecision>(7)}, {}) ==
        Refusal{ErrorKind::usage, "settings: float32_matmul_precision is 7, must be highest, high or medium"});
  CHECK(
      refusal({.memory_format = static_cast<env::MemoryFormat>(3)}, {}) ==
      Refusal{ErrorKind::usage, "settings: memory_format is 3, must be contiguous, channels_last or channels_last_3d"});
}

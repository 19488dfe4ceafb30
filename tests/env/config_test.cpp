// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "accelerate/env/settings.hpp"
#include "tests/env/refusal.hpp"

namespace env = accelerate::env;
using accelerate::ErrorKind;
using testing::refusal;

namespace {

std::pair<ErrorKind, std::string> parse_refusal(const char* text) {
  return refusal([&] { env::parse_config(text, "job.yaml"); });
}

}  // namespace

TEST_CASE("a config file contains keys and values, comments and empty lines") {
  const auto config =
      env::parse_config("# mine\ncpu: true\n\ntimeout: 30  # s\nbackend: \"gloo\"\ndebug:\n", "job.yaml");
  CHECK(config.path == "job.yaml");
  CHECK(config.values == std::map<std::string, std::string>{{"cpu", "true"}, {"timeout", "30"}, {"backend", "gloo"}});
  CHECK(env::parse_config("", "job.yaml").values.empty());
  CHECK(env::parse_config("# nothing\n", "job.yaml").values.empty());
}

TEST_CASE("an unknown key is refused with the closest known key, else with all known keys") {
  CHECK(parse_refusal("cpus: 2\n") ==
        std::pair{ErrorKind::environment,
                  std::string("settings: job.yaml has the unknown key 'cpus'; did you mean cpu?")});
  CHECK(
      parse_refusal("learning_rate: 2\n") ==
      std::pair{
          ErrorKind::environment,
          std::string(
              "settings: job.yaml has the unknown key 'learning_rate'; the known keys are gradient_accumulation_steps, "
              "mixed_precision, cpu, backend, timeout, debug, torch_device, threads_per_rank, allow_shared_gpus, "
              "memory_format, float32_matmul_precision, cudnn_benchmark, "
              "num_processes, multi_gpu, hosts, num_machines, machine_rank, main_process_ip, main_process_port, "
              "same_network, gpu_ids, rdzv_backend, runner, hostfile, enable_cpu_affinity, mpirun_hostfile, "
              "grace_time, max_restarts, resume_code, ranks_per_machine, role, monitor_interval, log_dir, tee, "
              "redirects, local_ranks_filter, label, quiet, hang_timeout")});
}

TEST_CASE("nested YAML is refused") {
  using Refusal = std::pair<ErrorKind, std::string>;
  CHECK(parse_refusal("- cpu\n") ==
        Refusal{ErrorKind::environment, "settings: job.yaml must contain lines like 'cpu: true'"});
  CHECK(parse_refusal("cpu: [1, 2]\n") ==
        Refusal{ErrorKind::environment, "settings: cpu of job.yaml is a list or a map, must be one value"});
  CHECK(parse_refusal("cpu: 1\ntimeout: 5\ncpu: 0\n") ==
        Refusal{ErrorKind::environment, "settings: job.yaml has cpu twice"});
  CHECK(parse_refusal("cpu: 1\nbackend: gloo: x\n") ==
        Refusal{ErrorKind::environment, "settings: job.yaml line 2 is not YAML: illegal map value"});
  // yaml-cpp alone would go on for ever.
  CHECK(parse_refusal("# a\n,# b\ncpu: 1\n") ==
        Refusal{ErrorKind::environment, "settings: job.yaml line 2 is not YAML: no value begins with this"});
}

TEST_CASE("ACCELERATE_CONFIG_FILE names the config file") {
  const auto path = std::filesystem::temp_directory_path() / "accelerate_config_test.yaml";
  std::ofstream(path) << "gradient_accumulation_steps: 6\n";
  const env::Variables variables{{"ACCELERATE_CONFIG_FILE", path.string()}};
  CHECK(env::resolve_settings({}, variables, env::read_config(variables)).gradient_accumulation_steps == 6);
  std::ofstream(path, std::ios::trunc).flush();
  CHECK(env::read_config(variables).values.empty());
  std::filesystem::remove(path);
  CHECK(env::read_config({}).values.empty());
}

TEST_CASE("a config file that cannot be read is refused with path and cause") {
  using Refusal = std::pair<ErrorKind, std::string>;
  CHECK(refusal([] {
          env::read_config({{"ACCELERATE_CONFIG_FILE", "/nowhere/job.yaml"}});
        }) ==
        Refusal{
            ErrorKind::io,
            "settings: cannot read /nowhere/job.yaml, which ACCELERATE_CONFIG_FILE names: No such file or directory"});
  CHECK(refusal([] {
          env::read_config({{"ACCELERATE_CONFIG_FILE", "/tmp"}});
        }) == Refusal{ErrorKind::io, "settings: cannot read /tmp, which ACCELERATE_CONFIG_FILE names: Is a directory"});
}

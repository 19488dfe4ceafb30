// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/environment.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/launch/commands/files.hpp"
#include "tests/launch/commands/program.hpp"

using namespace accelerate::launch;
using testing::TemporaryFolder;
using testing::write_file;
namespace fs = std::filesystem;

namespace {

std::string fact(const Facts& facts, const std::string& name) {
  const auto found = std::find_if(facts.begin(), facts.end(), [&](const auto& one) { return one.first == name; });
  return found == facts.end() ? "none" : found->second;
}

}  // namespace

TEST_CASE("the description of the machine uses the system's files") {
  const TemporaryFolder root;
  for (const char* folder : {"etc", "dev/shm", "proc/driver/nvidia/gpus/0000:0a", "proc/driver/nvidia/gpus/0000:0b"}) {
    fs::create_directories(root.path / folder);
  }
  write_file(root.path / "etc/os-release", "NAME=\"x\"\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\n");
  write_file(root.path / "proc/cpuinfo", "processor\t: 0\nmodel name\t: A Fast One\n");
  write_file(root.path / "proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\n");
  write_file(root.path / "proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module  580.95\nGCC\n");
  write_file(root.path / "proc/driver/nvidia/gpus/0000:0a/information", "Model: \t\t NVIDIA H100\nIRQ: 3\n");
  write_file(root.path / "proc/driver/nvidia/gpus/0000:0b/information", "");
  const Facts facts = facts_of_machine(root.path, {});
  CHECK(fact(facts, "system").starts_with("Debian GNU/Linux 12 (bookworm), Linux "));
  CHECK(fact(facts, "processors").starts_with("A Fast One, "));
  CHECK(fact(facts, "memory").starts_with("16.00 GiB, "));
  CHECK(fact(facts, "NVIDIA driver") == "NVIDIA UNIX Open Kernel Module  580.95");
  CHECK(fact(facts, "GPUs").starts_with("2 in this machine, "));
  CHECK(fact(facts, "GPU 0") == "NVIDIA H100");
  CHECK(fact(facts, "GPU 1") == "unknown");
}

TEST_CASE("missing information is unknown, not an error") {
  const Facts facts = facts_of_machine("/no/such/root", {});
  CHECK(fact(facts, "processors").starts_with("unknown, "));
  CHECK(fact(facts, "memory") == "unknown");
  CHECK(fact(facts, "NVIDIA driver") == "no NVIDIA driver is loaded");
}

TEST_CASE("programs are searched in PATH") {
  const TemporaryFolder at;
  write_file(at.path / "mpirun", "#!/bin/sh\n");
  fs::permissions(at.path / "mpirun", fs::perms::owner_all);
  write_file(at.path / "srun", "not executable");
  const Facts facts = facts_of_programs({{"PATH", "/no/such:" + at.path.string()}});
  CHECK(fact(facts, "mpirun") == at / "mpirun");
  CHECK(fact(facts, "ssh") == "not found");
  CHECK(fact(facts_of_programs({}), "mpirun") == "not found");
}

TEST_CASE("relevant variables are printed, a job's secret is not") {
  const Facts facts = facts_of_variables({{"ACCELERATE_BACKEND", "gloo"},
                                          {"ACCELERATE_JOB_ID", "0123"},
                                          {"SLURM_JOB_ID", "7"},
                                          {"HF_HOME_TOKEN", "hf_secret"},
                                          {"FSDP_VERSION", "2"},
                                          {"NCCL_DEBUG", "INFO"},
                                          {"EDITOR", "vi"}});
  CHECK(facts == Facts{{"ACCELERATE_BACKEND", "gloo"},
                       {"ACCELERATE_JOB_ID", "(hidden)"},
                       {"FSDP_VERSION", "2"},
                       {"HF_HOME_TOKEN", "(hidden)"},
                       {"NCCL_DEBUG", "INFO"},
                       {"SLURM_JOB_ID", "7"}});
}

TEST_CASE("the mesh of the settings is a line for each rank") {
  CHECK(
      mesh_in_words({}, {}) ==
      "no mesh: all ranks are data parallel (ACCELERATE_USE_PARALLELISM_CONFIG and parallelism_config are not set)\n");
  const TemporaryFolder at;
  write_file(at.path / "c.yaml", "parallelism_config: {dp_replicate_size: 2, tp_size: 2}\n");
  const auto ran = testing::run_program("accelerate_env", {"--mesh", "--config_file", at / "c.yaml"});
  CHECK(ran.code == 0);
  CHECK(ran.err.empty());
  CHECK(ran.out ==
        "mesh of 4 ranks: dp_replicate 2 x tp 2\n"
        "rank 0: dp_replicate 0, tp 0\n"
        "rank 1: dp_replicate 0, tp 1\n"
        "rank 2: dp_replicate 1, tp 0\n"
        "rank 3: dp_replicate 1, tp 1\n");
  const auto by_variables =
      testing::run_program("accelerate_env", {"--mesh", "--config_file", "/no/such.yaml"},
                           {{"ACCELERATE_USE_PARALLELISM_CONFIG", "1"}, {"PARALLELISM_CONFIG_PP_SIZE", "2"}});
  CHECK(by_variables.out == "mesh of 2 ranks: pp 2\nrank 0: pp 0\nrank 1: pp 1\n");
  const auto context =
      testing::run_program("accelerate_env", {"--mesh", "--config_file", "/no/such.yaml"},
                           {{"ACCELERATE_USE_PARALLELISM_CONFIG", "1"}, {"PARALLELISM_CONFIG_CP_SIZE", "2"}});
  CHECK(context.out == "mesh of 2 ranks: cp 2\nrank 0: cp 0\nrank 1: cp 1\n");
}

TEST_CASE("the program prints a block with the build, the machine, the config file and the variables") {
  const TemporaryFolder at;
  write_file(at.path / "c.yaml", "num_processes: 2\nuse_cpu: true\n");
  const auto ran = testing::run_program("accelerate_env", {"--config_file", at / "c.yaml"}, {{"NCCL_DEBUG", "WARN"}});
  CHECK(ran.code == 0);
  CHECK(ran.err.empty());
  CHECK(ran.out.starts_with("- Accelerate for C++: 0.2.0\n- LibTorch: 2."));
  CHECK(ran.out.find("- config file: " + (at / "c.yaml") + "\n    num_processes: 2\n    use_cpu: true\n") !=
        std::string::npos);
  CHECK(ran.out.find("    NCCL_DEBUG=WARN\n") != std::string::npos);
  const auto none = testing::run_program("accelerate_env", {"--config_file", "/no/such.yaml"});
  CHECK(none.code == 0);
  CHECK(none.out.find("- config file: none at /no/such.yaml\n") != std::string::npos);
}

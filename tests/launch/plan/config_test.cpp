// SPDX-License-Identifier: Apache-2.0
// Files from `accelerate config`, with the keys of its versions.
#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>

#include "accelerate/env/config_file.hpp"
#include "accelerate/env/config_keys.hpp"
#include "launch/plan/options_table.hpp"
#include "launch/plan/resolve.hpp"

namespace env = accelerate::env;
using accelerate::launch::LaunchOptions;
using accelerate::launch::resolve_options;
using accelerate::launch::Resolved;
using Lines = std::vector<std::string>;

namespace {

Resolved of_version(const std::string& version, const LaunchOptions& options = {}) {
  return resolve_options(
      options, {}, env::read_config_file(TEST_SOURCE_DIR "/tests/launch/configs/" + version + ".yaml", "the test"));
}

std::string refusal(const std::string& text) {
  try {
    (void)resolve_options({}, {}, env::parse_config(text, "f.yaml"));
  } catch (const accelerate::Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("the config file of Accelerate 0.11: two machines with two GPUs each") {
  const auto [options, values, timeout, notes] = of_version("0.11");
  CHECK(options == LaunchOptions{.settings = {.mixed_precision = accelerate::env::Precision::fp16, .cpu = false},
                                 .num_processes = 4,
                                 .num_machines = 2,
                                 .machine_rank = 1,
                                 .main_process_ip = "gpu-a",
                                 .main_process_port = 29600});
  CHECK(notes.empty());
}

TEST_CASE("the config file of Accelerate 0.12: one process on the CPU") {
  const auto [options, values, timeout, notes] = of_version("0.12");
  CHECK(options == LaunchOptions{.settings = {.mixed_precision = accelerate::env::Precision::no, .cpu = true},
                                 .num_processes = 1,
                                 .num_machines = 1,
                                 .machine_rank = 0});
  CHECK(notes.empty());
}

TEST_CASE("the config file of Accelerate 0.28: MPI on four machines with a host file") {
  const auto [options, values, timeout, notes] = of_version("0.28");
  CHECK(options.mpirun_hostfile == "/home/user/hostfile");
  CHECK(options.num_processes == 16);
  CHECK(options.num_machines == 4);
  CHECK(options.settings.cpu == true);
  CHECK(options.same_network == true);
  CHECK(options.rdzv_backend == "static");
  CHECK(notes ==
        Lines{TEST_SOURCE_DIR "/tests/launch/configs/0.28.yaml has keys without effect here: ipex_config, mpirun_ccl"});
}

TEST_CASE("the config file of Accelerate 0.34 with fp8 is refused; with another precision it is read") {
  CHECK_THROWS_WITH_AS(of_version("0.34"),
                       "settings: mixed_precision in " TEST_SOURCE_DIR
                       "/tests/launch/configs/0.34.yaml is 'fp8', must be no, bf16 or fp16",
                       accelerate::Error);
  std::stringstream text;
  text << std::ifstream(TEST_SOURCE_DIR "/tests/launch/configs/0.34.yaml").rdbuf();
  std::string bf16 = text.str();
  bf16.replace(bf16.find("mixed_precision: fp8"), 20, "mixed_precision: bf16");
  const auto [options, values, timeout, notes] = resolve_options({}, {}, env::parse_config(bf16, "f.yaml"));
  CHECK(options ==
        LaunchOptions{.settings = {.mixed_precision = accelerate::env::Precision::bf16, .cpu = false, .debug = true},
                      .num_processes = 2,
                      .num_machines = 1,
                      .machine_rank = 0,
                      .gpu_ids = "0,1",
                      .enable_cpu_affinity = true,
                      .same_network = true,
                      .rdzv_backend = "static"});
  CHECK(notes == Lines{"f.yaml has keys without effect here: fp8_config"});
}

TEST_CASE("the config file of Accelerate 1.15: as many processes as GPUs") {
  const auto [options, values, timeout, notes] = of_version("1.15");
  CHECK_FALSE(options.num_processes);
  CHECK_FALSE(options.gpu_ids);
  CHECK(options.settings.mixed_precision == accelerate::env::Precision::bf16);
  CHECK(options.enable_cpu_affinity == false);
  CHECK(notes == Lines{TEST_SOURCE_DIR "/tests/launch/configs/1.15.yaml has keys without effect here: dynamo_config"});
}

TEST_CASE("the command line overrides the file with a log line") {
  const auto [options, values, timeout, notes] = of_version("0.12", {.settings = {.debug = true}, .num_processes = 2});
  CHECK(options.num_processes == 2);
  CHECK(options.settings.debug == true);
  CHECK(notes == Lines{"num_processes is 2 from the command line; not used: 1 in " TEST_SOURCE_DIR
                       "/tests/launch/configs/0.12.yaml"});
}

TEST_CASE("a variable overrides the file, and the command line overrides both") {
  const auto config = env::parse_config("num_processes: 2\nmachine_rank: 3\n", "f.yaml");
  const env::Variables variables{{"ACCELERATE_NUM_PROCESSES", "4"}, {"ACCELERATE_GPU_IDS", "1"}};
  const auto result = resolve_options({.gpu_ids = "0"}, variables, config);
  CHECK(result.options.num_processes == 4);
  CHECK(result.options.machine_rank == 3);
  CHECK(result.options.gpu_ids == "0");
  CHECK(result.conflicts == Lines{"num_processes is 4 from ACCELERATE_NUM_PROCESSES; not used: 2 in f.yaml",
                                  "gpu_ids is 0 from the command line; not used: 1 in ACCELERATE_GPU_IDS"});
}

TEST_CASE("another distributed_type is refused with the supported ones") {
  CHECK(refusal("distributed_type: FSDP").empty());
  CHECK(refusal("distributed_type: DEEPSPEED").empty());
  CHECK(refusal("distributed_type: MEGATRON_LM") ==
        "settings: f.yaml has distributed_type MEGATRON_LM, but Megatron-LM is a Python library; MULTI_GPU with "
        "tp_size in parallelism_config is tensor parallel");
  CHECK(
      refusal("distributed_type: XLA") ==
      "settings: f.yaml has distributed_type XLA, but LibTorch does not support TPUs; MULTI_GPU and MULTI_CPU are data "
      "parallel");
  CHECK(
      refusal("distributed_type: MULTI_XPU") ==
      "settings: f.yaml has distributed_type MULTI_XPU, but several devices of this kind are not supported; MULTI_GPU "
      "and MULTI_CPU are");
  CHECK(refusal("distributed_type: both") ==
        "settings: f.yaml has distributed_type both, but it must be NO, MULTI_CPU, MULTI_GPU, FSDP or DEEPSPEED");
  for (const std::string type : {"no", "'no'", "\"No\""}) {
    CHECK(refusal("distributed_type: " + type)
              .ends_with("but it must be NO, MULTI_CPU, MULTI_GPU, FSDP or DEEPSPEED; did you mean NO?"));
  }
  CHECK(refusal("distributed_type: multi-gpu") ==
        "settings: f.yaml has distributed_type multi-gpu, but it must be NO, MULTI_CPU, MULTI_GPU, FSDP or DEEPSPEED; "
        "did you mean "
        "MULTI_GPU?");
  CHECK(refusal("compute_environment: AMAZON_SAGEMAKER") ==
        "settings: f.yaml has compute_environment AMAZON_SAGEMAKER, which only Python supports; use LOCAL_MACHINE");
}

TEST_CASE("a file for unsupported training is refused for that reason, regardless of earlier keys") {
  CHECK(refusal("base_job_name: x\ncompute_environment: AMAZON_SAGEMAKER\ndistributed_type: DATA_PARALLEL\n"
                "ec2_instance_type: ml.p3.2xlarge\nregion: us-east-1\n") ==
        "settings: f.yaml has compute_environment AMAZON_SAGEMAKER, which only Python supports; use LOCAL_MACHINE");
  CHECK(refusal("aaa: 1\ndistributed_type: XLA").starts_with("settings: f.yaml has distributed_type XLA, but "));
  CHECK(refusal("aaa: 1\ndistributed_type: NO").starts_with("settings: f.yaml has the unknown key 'aaa'"));
}

TEST_CASE("a file with another framework's settings is refused also without distributed_type") {
  CHECK(refusal("fsdp_config: {a: 1}") ==
        "settings: f.yaml has fsdp_config and no distributed_type, which must be FSDP; add it, or remove fsdp_config");
  CHECK(refusal("deepspeed_config: {a: 1}") ==
        "settings: f.yaml has deepspeed_config and no distributed_type, which must be DEEPSPEED; add it, or remove "
        "deepspeed_config");
  CHECK(
      refusal("megatron_lm_config: {a: 1}") ==
      "settings: f.yaml has megatron_lm_config and no distributed_type, but Megatron-LM is a Python library; MULTI_GPU "
      "with tp_size in parallelism_config is tensor parallel");
  for (const char* none : {"fsdp_config: {}", "deepspeed_config:", "megatron_lm_config: {}"}) {
    CHECK(refusal(none).empty());
  }
  CHECK(refusal("distributed_type: MULTI_GPU\nfsdp_config: {a: 1}").empty());
}

TEST_CASE("a second document in a file is refused; document markers around a single one are accepted") {
  CHECK(refusal("num_processes: 2\n---\nnum_processes: 4\n") ==
        "settings: f.yaml has 2 documents with --- between them, must have 1; put each into a separate file");
  CHECK(env::parse_config("---\nnum_processes: 2\n...\n---\n", "f").values ==
        std::map<std::string, std::string>{{"num_processes", "2"}});
  CHECK(env::parse_config("", "f").values.empty());
}

TEST_CASE("invalid keys and values are refused with the closest valid ones") {
  CHECK(refusal("num_proceses: 2") ==
        "settings: f.yaml has the unknown key 'num_proceses'; did you mean num_processes?");
  CHECK(refusal("machine-rank: 2") ==
        "settings: f.yaml has the unknown key 'machine-rank'; did you mean machine_rank?");
  CHECK(refusal("num_processes: two") == "settings: num_processes in f.yaml is 'two', must be an integer, 1 to 4096");
  CHECK(refusal("main_process_ip: [a, b]") ==
        "settings: main_process_ip of f.yaml is a list or a map, must be one value");
  CHECK(refusal("rdzv_backend: c10d") == "settings: rdzv_backend in f.yaml is 'c10d', must be static");
  CHECK(refusal("use_cpu: maybe") ==
        "settings: cpu in f.yaml is 'maybe', must be y, yes, t, true, on, 1, n, no, f, false, off or 0");
}

TEST_CASE("old keys are accepted: use_cpu, fp16; the current key overrides them") {
  CHECK(env::parse_config("use_cpu: true\nfp16: true\n", "f").values ==
        std::map<std::string, std::string>{{"cpu", "true"}, {"mixed_precision", "fp16"}});
  CHECK(env::parse_config("use_cpu: true\ncpu: false\nfp16: true\nmixed_precision: bf16\n", "f").values ==
        std::map<std::string, std::string>{{"cpu", "false"}, {"mixed_precision", "bf16"}});
  CHECK(env::parse_config("fp16: false\n", "f").values.empty());
  CHECK(refusal("fp16: x") ==
        "settings: fp16 in f.yaml is 'x', must be y, yes, t, true, on, 1, n, no, f, false, off or 0");
}

TEST_CASE("the launcher's options match the library's list of launcher keys") {
  Lines of_table;
  accelerate::launch::for_each_option([&](std::string_view, const auto& row) { of_table.emplace_back(row.key); });
  Lines known;
  for (const auto key : env::launcher_keys()) known.emplace_back(key);
  std::sort(of_table.begin(), of_table.end());
  std::sort(known.begin(), known.end());
  CHECK(of_table == known);
}

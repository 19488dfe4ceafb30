// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/options.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "launch/plan/options_table.hpp"
#include "launch/plan/resolve.hpp"

using accelerate::launch::LaunchError;
using accelerate::launch::LaunchOptions;
using accelerate::launch::parse_arguments;

namespace {

std::string refusal(const std::vector<std::string>& arguments) {
  try {
    (void)parse_arguments(arguments);
  } catch (const LaunchError& error) {
    CHECK(error.exit_code() == 2);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("an option that is not given is unset") {
  CHECK(parse_arguments({"./train"}).options == LaunchOptions{.command = {"./train"}});
}

TEST_CASE("every option is parsed in both spellings, with a space or an equals sign") {
  LaunchOptions expected{.num_processes = 4,
                         .num_machines = 2,
                         .machine_rank = 1,
                         .main_process_ip = "gpu-a",
                         .main_process_port = 0,
                         .gpu_ids = "0,1",
                         .multi_gpu = true,
                         .enable_cpu_affinity = true,
                         .ranks_per_machine = "3,1",
                         .runner = "ssh",
                         .hostfile = "h",
                         .hosts = "a:2,b",
                         .mpirun_hostfile = "m",
                         .same_network = true,
                         .rdzv_backend = "static",
                         .role = "trainer",
                         .monitor_interval = std::chrono::milliseconds(500),
                         .config_file = "c.yaml",
                         .dry_run = true,
                         .command = {"./train"}};
  expected.settings = {.gradient_accumulation_steps = 8,
                       .mixed_precision = accelerate::env::Precision::bf16,
                       .cpu = true,
                       .backend = "gloo",
                       .timeout = std::chrono::seconds(30),
                       .debug = true,
                       .device = "cpu",
                       .threads_per_rank = 2,
                       .allow_shared_gpus = true,
                       .memory_format = accelerate::env::MemoryFormat::channels_last,
                       .float32_matmul_precision = accelerate::env::Float32MatmulPrecision::high,
                       .cudnn_benchmark = true};
  CHECK(parse_arguments({"--cpu",
                         "--num_processes",
                         "4",
                         "--backend",
                         "gloo",
                         "--main_process_port",
                         "0",
                         "--num_cpu_threads_per_process",
                         "2",
                         "--gradient_accumulation_steps",
                         "8",
                         "--debug",
                         "--timeout",
                         "30",
                         "--mixed_precision",
                         "bf16",
                         "--device",
                         "cpu",
                         "--allow_shared_gpus",
                         "--memory_format",
                         "channels_last",
                         "--float32_matmul_precision",
                         "high",
                         "--cudnn_benchmark",
                         "--num_machines",
                         "2",
                         "--machine_rank",
                         "1",
                         "--main_process_ip",
                         "gpu-a",
                         "--gpu_ids",
                         "0,1",
                         "--multi_gpu",
                         "--enable_cpu_affinity",
                         "--ranks_per_machine",
                         "3,1",
                         "--runner",
                         "ssh",
                         "--hostfile",
                         "h",
                         "--hosts",
                         "a:2,b",
                         "--mpirun_hostfile",
                         "m",
                         "--same_network",
                         "--role",
                         "trainer",
                         "--monitor_interval",
                         "0.5",
                         "--rdzv_backend",
                         "static",
                         "--config_file",
                         "c.yaml",
                         "--dry_run",
                         "./train"})
            .options == expected);
  CHECK(parse_arguments({"--cpu",
                         "--num-processes=4",
                         "--backend=gloo",
                         "--main-process-port=0",
                         "--num-cpu-threads-per-process=2",
                         "--gradient-accumulation-steps=8",
                         "--debug",
                         "--timeout=30",
                         "--mixed-precision=bf16",
                         "--device=cpu",
                         "--allow-shared-gpus",
                         "--memory-format=channels_last",
                         "--float32-matmul-precision=high",
                         "--cudnn-benchmark",
                         "--num-machines=2",
                         "--machine-rank=1",
                         "--main-process-ip=gpu-a",
                         "--gpu-ids=0,1",
                         "--multi-gpu",
                         "--enable-cpu-affinity",
                         "--ranks-per-machine=3,1",
                         "--runner=ssh",
                         "--hostfile=h",
                         "--hosts=a:2,b",
                         "--mpirun-hostfile=m",
                         "--same-network",
                         "--role=trainer",
                         "--monitor-interval=0.5",
                         "--rdzv-backend=static",
                         "--config-file=c.yaml",
                         "--dry-run",
                         "./train"})
            .options == expected);
}

TEST_CASE("a flag takes a value only after an equals sign; the last one counts") {
  const auto options = parse_arguments({"--cpu", "no", "--debug"}).options;
  CHECK(options.settings.cpu == true);
  CHECK(options.command == std::vector<std::string>{"no", "--debug"});
  CHECK(parse_arguments({"--cpu=no", "x"}).options.settings.cpu == false);
  CHECK(parse_arguments({"--cpu=no", "--cpu", "x"}).options.settings.cpu == true);
  CHECK(refusal({"--cpu=maybe", "x"}) ==
        "accelerate_launch: --cpu is 'maybe', must be y, yes, t, true, on, 1, n, no, f, false, off or 0");
}

TEST_CASE("everything after the program belongs to the program") {
  const auto options = parse_arguments({"--cpu", "./train", "--num_processes", "9", "--", "-x", "--help"}).options;
  CHECK_FALSE(options.num_processes);
  CHECK(options.command == std::vector<std::string>{"./train", "--num_processes", "9", "--", "-x", "--help"});
}

TEST_CASE("a separator is accepted before the program") {
  CHECK(parse_arguments({"--cpu", "--", "./train", "--cpu"}).options.command ==
        std::vector<std::string>{"./train", "--cpu"});
  CHECK(parse_arguments({"--", "-odd"}).options.command == std::vector<std::string>{"-odd"});
}

TEST_CASE("an invalid command line is refused with the given and the allowed values") {
  CHECK(refusal({}) == "accelerate_launch: no program given; usage: accelerate_launch [options] program [arguments]");
  CHECK(refusal({"--cpu", "--"}) ==
        "accelerate_launch: no program given; usage: accelerate_launch [options] program [arguments]");
  CHECK(refusal({"--gpus", "2", "./train"}) ==
        "accelerate_launch: --gpus is not an option; see accelerate_launch --help");
  CHECK(refusal({"-n", "2", "./train"}) == "accelerate_launch: -n is not an option; see accelerate_launch --help");
  CHECK(refusal({"--num_processes", "0", "x"}) ==
        "accelerate_launch: --num_processes is '0', must be a whole number from 1 to 4096");
  CHECK(refusal({"--num-processes", "two", "x"}) ==
        "accelerate_launch: --num_processes is 'two', must be a whole number from 1 to 4096");
  CHECK(refusal({"--num_processes", "2x", "x"}) ==
        "accelerate_launch: --num_processes is '2x', must be a whole number from 1 to 4096");
  CHECK(refusal({"--num_processes", "4097", "x"}) ==
        "accelerate_launch: --num_processes is '4097', must be a whole number from 1 to 4096");
  CHECK(refusal({"--num_processes", "999999999999", "x"}) ==
        "accelerate_launch: --num_processes is '999999999999', must be a whole number from 1 to 4096");
  CHECK(parse_arguments({"--num_processes", "4096", "x"}).options.num_processes == 4096);
  CHECK(refusal({"--main_process_port", "65536", "x"}) ==
        "accelerate_launch: --main_process_port is '65536', must be a whole number from 0 to 65535");
  CHECK(refusal({"--main_process_port=-1", "x"}) ==
        "accelerate_launch: --main_process_port is '-1', must be a whole number from 0 to 65535");
  CHECK(refusal({"--num_cpu_threads_per_process", "0", "x"}) ==
        "accelerate_launch: --num_cpu_threads_per_process is '0', must be a whole number from 1 to 65536");
  CHECK(refusal({"--gradient_accumulation_steps", "-3", "x"}) ==
        "accelerate_launch: --gradient_accumulation_steps is '-3', must be a whole number of at least 1");
  CHECK(refusal({"--backend", "ucx", "x"}) == "accelerate_launch: --backend is 'ucx', must be mpi, gloo or nccl");
  CHECK(refusal({"--cpu", "--backend", "nccl", "x"}) ==
        "accelerate_launch: --backend nccl needs GPUs, but --cpu is given; use mpi or gloo");
  CHECK(refusal({"--device", "cpu", "--backend", "nccl", "x"}) ==
        "accelerate_launch: --backend nccl needs GPUs, but --device cpu is given; use mpi or gloo");
  CHECK(refusal({"--num_cpu_threads_per_process", "5,2", "x"}) ==
        "accelerate_launch: --num_cpu_threads_per_process is '5,2', must be a whole number from 1 to 65536");
  CHECK(refusal({"--timeout", "0", "x"}) ==
        "accelerate_launch: --timeout is '0', must be whole seconds, 1 to 1000000000");
  CHECK(refusal({"--device", "cuda:x", "x"}) ==
        "accelerate_launch: --device is 'cuda:x', must be cpu, cuda, cuda:N or another device of LibTorch's");
  CHECK(refusal({"--num_processes"}) ==
        "accelerate_launch: --num_processes: 1 required N missing; see accelerate_launch --help");
}

TEST_CASE("the last of repeated options counts, in every spelling") {
  const auto options =
      parse_arguments({"--num_processes", "2", "--hosts=a", "--num-processes=3", "--hosts", "b,c", "--tee", "0", "-t",
                       "3", "--mixed_precision", "fp16", "--mixed_precision=bf16", "x"})
          .options;
  CHECK(options.num_processes == 3);
  CHECK(options.hosts == "b,c");
  CHECK(options.tee == "3");
  CHECK(options.settings.mixed_precision == accelerate::env::Precision::bf16);
  CHECK(options.command == std::vector<std::string>{"x"});
  CHECK(refusal({"--num_processes", "2", "--num_processes", "0", "x"}) ==
        "accelerate_launch: --num_processes is '0', must be a whole number from 1 to 4096");
}

TEST_CASE("the grace time is given in seconds, with an optional fraction") {
  CHECK(parse_arguments({"--grace_time", "0.25", "x"}).options.grace_time == std::chrono::milliseconds(250));
  CHECK(parse_arguments({"--grace-time=30", "x"}).options.grace_time == std::chrono::seconds(30));
  for (const char* wrong : {"", "5s", "-1", "nan", "1e10"}) {
    CAPTURE(wrong);
    CHECK(refusal({"--grace_time", wrong, "x"}) ==
          "accelerate_launch: --grace_time is '" + std::string(wrong) + "', must be seconds, 0 to 1000000000");
  }
}

TEST_CASE("both spellings may mix within a name, and arguments after the program are not changed") {
  const auto options = parse_arguments({"--num_cpu-threads_per-process", "2", "--gradient-accumulation_steps=3",
                                        "./train", "--a-b", "--dry-run"})
                           .options;
  CHECK(options.settings.threads_per_rank == 2);
  CHECK(options.settings.gradient_accumulation_steps == 3);
  CHECK_FALSE(options.dry_run);
  CHECK(options.command == std::vector<std::string>{"./train", "--a-b", "--dry-run"});
}

TEST_CASE("an unknown option is refused with the closest known one") {
  CHECK(refusal({"--num_proceses", "2", "x"}) ==
        "accelerate_launch: --num_proceses is not an option; did you mean --num_processes? see accelerate_launch "
        "--help");
  CHECK(
      refusal({"--cpu", "--machine-rnak=2", "x"}) ==
      "accelerate_launch: --machine_rnak is not an option; did you mean --machine_rank? see accelerate_launch --help");
  CHECK(refusal({"-cpu", "x"}) ==
        "accelerate_launch: -cpu is not an option; did you mean --cpu? see accelerate_launch --help");
}

TEST_CASE("unsupported options of Accelerate are refused with the alternative") {
  const auto is_none = [](const std::string& option, const std::string& reason) {
    CHECK(refusal({option, "1", "x"}) ==
          "accelerate_launch: " + option + " of Hugging Face Accelerate is not an option here: " + reason);
  };
  is_none("--deepspeed_hostfile",
          "files and hosts of DeepSpeed are not read; --use_deepspeed --zero_stage N shards the training, --hostfile "
          "names hosts");
  is_none("--offload_optimizer_device",
          "--use_fsdp --fsdp_sharding_strategy FULL_SHARD --fsdp_offload_params true keeps parameters and optimizer "
          "state on the host");
  is_none("--zero3_init_flag",
          "prepare() divides a whole model, and save_model() writes whole tensors in the dtype of the model");
  is_none("--megatron_lm_tp_degree",
          "Megatron-LM is a Python library; --use_parallelism_config with --parallelism_config_tp_size N is tensor "
          "parallelism");
  is_none("--parallelism_config_cp_comm_strategy",
          "ranks of a context parallel group gather keys and values, as with allgather; --parallelism_config_cp_size N "
          "is their number");
  is_none("--parallelism_config_sp_backend",
          "DeepSpeed's sequence parallelism is not supported; --parallelism_config_cp_size N divides the sequence");
  is_none("--dynamo_backend", "it compiles Python code; tools/export_compiled.py compiles a module for a C++ program");
  is_none("--fp8_format", "fp8 is not supported; --mixed_precision takes bf16 and fp16");
  is_none("--tpu", "LibTorch does not support TPUs; ranks run on GPUs or CPUs");
  is_none("-m", "a program is an executable; pass its path");
  is_none("--gradient_clipping", "the program clips; call accelerator.clip_grad_norm_()");
}

TEST_CASE("every option of Accelerate 1.15 is accepted, or refused with the alternative") {
  std::ifstream list(TEST_SOURCE_DIR "/tests/launch/configs/options-1.15.txt");
  size_t options = 0;
  for (std::string option; std::getline(list, option); ++options) {
    CAPTURE(option);
    std::string message;
    try {
      (void)parse_arguments({option, "1", "x"});
    } catch (const LaunchError& error) {
      message = error.what();
    }
    CHECK(message.find(" is not an option; ") == std::string::npos);
  }
  CHECK(options > 100);
}

TEST_CASE("short names of Accelerate's options are aliases") {
  CHECK(parse_arguments({"-q", "-t", "3", "--log_dir=l", "x", "-q"}).options ==
        LaunchOptions{.log_dir = "l", .tee = "3", .quiet = true, .command = {"x", "-q"}});
}

TEST_CASE("the resume code must be a possible exit code") {
  CHECK(parse_arguments({"--resume_code", "75", "x"}).options.resume_code == 75);
  CHECK(refusal({"--resume-code=0", "x"}) ==
        "accelerate_launch: --resume_code is '0', must be a whole number from 1 to 255");
  CHECK(refusal({"--resume-code=256", "x"}) ==
        "accelerate_launch: --resume_code is '256', must be a whole number from 1 to 255");
}

TEST_CASE("backend auto is accepted and names no backend") {
  const auto options = parse_arguments({"--backend", "auto", "x"}).options;
  CHECK(options.settings.backend == "auto");
  CHECK_FALSE(named_backend(options));
  CHECK_FALSE(needs_gpus(options));
  CHECK_NOTHROW(parse_arguments({"--backend", "auto", "--cpu", "x"}));
}

TEST_CASE("the reference lists every option of the launcher with its variable") {
  std::ifstream file(TEST_SOURCE_DIR "/docs/reference/command_line.md");
  std::stringstream page;
  page << file.rdbuf();
  accelerate::launch::for_each_option([&](std::string_view, const auto& row) {
    std::string line = "\n| `--" + std::string(row.option.name);
    if (!row.option.value_name.empty()) line += " " + std::string(row.option.value_name);
    line += "` | `" + std::string(row.variable) + "` |";
    CAPTURE(line);
    CHECK(page.str().find(line) != std::string::npos);
  });
}

TEST_CASE("defaults are in the table only: the help prints them, and they apply to omitted options") {
  const std::string page = parse_arguments({"--help"}).print.value();
  const auto values = accelerate::launch::resolve_options({}, {}, {}).values;
  std::map<std::string, std::string> defaults;
  const auto look_at = [&](const auto& row, const auto& value) {
    const std::string name(row.option.name);
    CAPTURE(name);
    const auto at = page.find("  --" + name + " ");
    REQUIRE(at != std::string::npos);
    const std::string line = page.substr(at, page.find('\n', at) - at);
    const std::string text = row.default_text();
    CHECK((line.find("(default ") == std::string::npos) == text.empty());
    if (!text.empty()) CHECK(line.ends_with(" (default " + text + ")."));
    CHECK(value.has_value() == row.has_default);
    if (value) CHECK(row.type.text(*value) == text);
    if (row.has_default) defaults[name] = text;
  };
  accelerate::launch::for_each_option([&](std::string_view, const auto& row) { look_at(row, row.of(values)); });
  accelerate::env::for_each_setting([&](const auto& row) { look_at(row, row.of(values.settings)); });
  CHECK(defaults == std::map<std::string, std::string>{{"num_machines", "1"},
                                                       {"machine_rank", "0"},
                                                       {"main_process_ip", "127.0.0.1"},
                                                       {"main_process_port", "29500"},
                                                       {"gpu_ids", "all"},
                                                       {"rdzv_backend", "static"},
                                                       {"tee", "3"},
                                                       {"redirects", "0"},
                                                       {"max_restarts", "0"},
                                                       {"hang_timeout", "0"},
                                                       {"grace_time", "5"},
                                                       {"gradient_accumulation_steps", "1"},
                                                       {"mixed_precision", "no"},
                                                       {"timeout", "600"},
                                                       {"memory_format", "contiguous"}});
}

TEST_CASE("the help names the variables with names unlike their options") {
  const std::string page = parse_arguments({"--help"}).print.value();
  CHECK(page.ends_with(
      "ACCELERATE_NUM_PROCESSES and the like, with another name\n"
      "ACCELERATE_USE_CPU (--cpu), ACCELERATE_DEBUG_MODE (--debug),\n"
      "ACCELERATE_TORCH_DEVICE (--device), OMP_NUM_THREADS (--num_cpu_threads_per_process),\n"
      "FSDP_VERSION (--fsdp_version), PARALLELISM_CONFIG_TP_SIZE (--parallelism_config_tp_size) and the like.\n"
      "All --fsdp_ and --parallelism_config_ options of Accelerate are accepted, or refused with a "
      "reason.\n"));
}

TEST_CASE("a given value overrides the table's default") {
  const LaunchOptions given{.num_machines = 3};
  CHECK(value_of(given, &LaunchOptions::num_machines) == 3);
  CHECK(value_of(given, &LaunchOptions::machine_rank) == 0);
  CHECK(value_of(given, &LaunchOptions::grace_time) == accelerate::launch::kDefaultGrace);
}

TEST_CASE("help is one page that names every option once") {
  const auto page = parse_arguments({"--help"}).print;
  REQUIRE(page);
  for (const char* option : {"--cpu ",
                             "--num_processes N",
                             "--backend NAME",
                             "--main_process_port PORT",
                             "--num_cpu_threads_per_process N",
                             "--gradient_accumulation_steps N",
                             "--mixed_precision NAME",
                             "--debug ",
                             "--timeout SECONDS",
                             "--device NAME",
                             "--allow_shared_gpus ",
                             "--memory_format NAME",
                             "--float32_matmul_precision NAME",
                             "--cudnn_benchmark ",
                             "--use_fsdp ",
                             "--fsdp_sharding_strategy NAME",
                             "--fsdp_reshard_after_forward BOOL",
                             "--fsdp_forward_prefetch BOOL",
                             "--fsdp_min_num_params N",
                             "--use_deepspeed ",
                             "--zero_stage N",
                             "--use_parallelism_config ",
                             "--parallelism_config_dp_replicate_size N",
                             "--parallelism_config_dp_shard_size N",
                             "--parallelism_config_tp_size N",
                             "--parallelism_config_cp_size N",
                             "--parallelism_config_pp_size N",
                             "--num_machines N",
                             "--machine_rank K",
                             "--main_process_ip HOST",
                             "--gpu_ids LIST",
                             "--multi_gpu ",
                             "--enable_cpu_affinity ",
                             "--runner NAME",
                             "--ranks_per_machine LIST",
                             "--hostfile FILE",
                             "--hosts LIST",
                             "--mpirun_hostfile FILE",
                             "--same_network ",
                             "--rdzv_backend static",
                             "--role NAME",
                             "--monitor_interval SECONDS",
                             "--config_file FILE",
                             "--dry_run ",
                             "--log_dir DIR",
                             "--tee STREAMS",
                             "--redirects STREAMS",
                             "--local_ranks_filter LIST",
                             "--label ",
                             "--quiet ",
                             "--max_restarts N",
                             "--resume_code CODE",
                             "--grace_time SECONDS",
                             "--hang_timeout SECONDS",
                             "--help ",
                             "--version "}) {
    CAPTURE(option);
    const auto first = page->find("  " + std::string(option));
    REQUIRE(first != std::string::npos);
    CHECK(page->find("  " + std::string(option), first + 3) == std::string::npos);
  }
  CHECK(page->starts_with("accelerate_launch [options] program [arguments]\n"));
  size_t lines = 0;
  size_t longest = 0;
  for (size_t at = 0, end = 0; (end = page->find('\n', at)) != std::string::npos; at = end + 1, ++lines) {
    longest = std::max(longest, end - at);
  }
  CHECK(lines <= 98);
  CHECK(longest <= 120);
  CHECK(parse_arguments({"-h"}).print == page);
}

TEST_CASE("version is printed") { CHECK(parse_arguments({"--version"}).print->starts_with("accelerate_launch 0.")); }

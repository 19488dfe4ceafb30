// SPDX-License-Identifier: Apache-2.0
// Table of the launcher's own options. Command line, variables, config file keys and help are generated from it. Its
// rows have the form of the settings table (accelerate/env/settings_table.hpp); settings are options too.
#pragma once

#include <string>
#include <string_view>

#include "accelerate/env/settings_table.hpp"
#include "launch/plan/option_types.hpp"
#include "launch/plan/options.hpp"
#include "launch/plan/stream_choice.hpp"

namespace accelerate::launch {

/// Upper limit for the number of ranks, so that a typing error does not exhaust memory.
inline constexpr int64_t kMaxProcesses = 4096;
inline constexpr int64_t kMaxMachines = 4096;

inline bool is_runner(std::string_view name) {
  return name == "local" || name == "ssh" || name == "srun" || name == "mpirun";
}
inline bool is_list_of_ranks(std::string_view list) { return parse_ranks(list).has_value(); }
inline bool is_stream_choice(std::string_view text) { return StreamChoice::parse(text).has_value(); }
inline bool is_rank_filter(std::string_view text) { return parse_rank_filter(text).has_value(); }
inline bool is_static(std::string_view name) { return name == "static"; }

/// Calls each(group, row) for every option; the group is a heading of the help page.
template <typename Each>
void for_each_option(Each&& each) {
  using env::DerivedDefault;
  using env::Flag;
  using env::Integer;
  using env::Setting;
  using env::Word;
  constexpr std::string_view ranks = "Ranks and machines";
  constexpr std::string_view hosts = "How they are started";
  constexpr std::string_view print = "Output";
  constexpr std::string_view ends = "Failures and restarts";
  each(ranks, Setting{.name = "num_processes",
                      .key = "num_processes",
                      .variable = "ACCELERATE_NUM_PROCESSES",
                      .option = {"num_processes", "N", "Ranks of the job, at most 4096."},
                      .type = Integer{1, kMaxProcesses},
                      .default_value = DerivedDefault{"one per visible NVIDIA GPU, else one"},
                      .member = [](auto& all) { return &all.num_processes; }});
  each(ranks, Setting{.name = "num_machines",
                      .key = "num_machines",
                      .variable = "ACCELERATE_NUM_MACHINES",
                      .option = {"num_machines", "N", "Number of machines, each with the same number of ranks."},
                      .type = Integer{1, kMaxMachines},
                      .default_value = 1,
                      .member = [](auto& all) { return &all.num_machines; }});
  each(ranks, Setting{.name = "machine_rank",
                      .key = "machine_rank",
                      .variable = "ACCELERATE_MACHINE_RANK",
                      .option = {"machine_rank", "K", "Index of this machine, from 0."},
                      .type = Integer{0, kMaxMachines - 1},
                      .default_value = 0,
                      .member = [](auto& all) { return &all.machine_rank; }});
  each(ranks, Setting{.name = "main_process_ip",
                      .key = "main_process_ip",
                      .variable = "ACCELERATE_MAIN_PROCESS_IP",
                      .option = {"main_process_ip", "HOST", "Name or address of machine 0."},
                      .type = Text{"a host's name or address"},
                      .default_value = std::string(kDefaultAddress),
                      .member = [](auto& all) { return &all.main_process_ip; }});
  each(ranks, Setting{.name = "main_process_port",
                      .key = "main_process_port",
                      .variable = "ACCELERATE_MAIN_PROCESS_PORT",
                      .option = {"main_process_port", "PORT", "Port of the rendezvous; 0 selects a free one."},
                      .type = Integer{0, 65535},
                      .default_value = kDefaultPort,
                      .member = [](auto& all) { return &all.main_process_port; }});
  each(ranks, Setting{.name = "gpu_ids",
                      .key = "gpu_ids",
                      .variable = "ACCELERATE_GPU_IDS",
                      .option = {"gpu_ids", "LIST", "GPUs that the ranks see, like 0,1."},
                      .type = Text{"all, or GPUs like 0,1"},
                      .default_value = std::string(kAllGpus),
                      .member = [](auto& all) { return &all.gpu_ids; }});
  each(ranks, Setting{.name = "multi_gpu",
                      .key = "multi_gpu",
                      .variable = "ACCELERATE_MULTI_GPU",
                      .option = {"multi_gpu", "", "Fail unless there are several ranks with one GPU each."},
                      .type = Flag{},
                      .member = [](auto& all) { return &all.multi_gpu; }});
  each(ranks,
       Setting{.name = "enable_cpu_affinity",
               .key = "enable_cpu_affinity",
               .variable = "ACCELERATE_ENABLE_CPU_AFFINITY",
               .option = {"enable_cpu_affinity", "", "Bind each rank to its share of the processors and NUMA nodes."},
               .type = Flag{},
               .member = [](auto& all) { return &all.enable_cpu_affinity; }});
  each(ranks, Setting{.name = "ranks_per_machine",
                      .key = "ranks_per_machine",
                      .variable = "ACCELERATE_RANKS_PER_MACHINE",
                      .option = {"ranks_per_machine", "LIST", "Number of ranks per machine if they differ, like 4,2."},
                      .type = Word{is_list_of_ranks, "a list of ranks like 4,2"},
                      .member = [](auto& all) { return &all.ranks_per_machine; }});
  each(hosts, Setting{.name = "runner",
                      .key = "runner",
                      .variable = "ACCELERATE_RUNNER",
                      .option = {"runner", "NAME", "local, ssh, srun or mpirun."},
                      .type = Word{is_runner, "local, ssh, srun or mpirun"},
                      .default_value = DerivedDefault{"derived from the other options"},
                      .member = [](auto& all) { return &all.runner; }});
  each(hosts, Setting{.name = "hostfile",
                      .key = "hostfile",
                      .variable = "ACCELERATE_HOSTFILE",
                      .option = {"hostfile", "FILE", "Lines like 'gpu-a slots=4': these hosts, over ssh or mpirun."},
                      .type = Text{"a file's name"},
                      .member = [](auto& all) { return &all.hostfile; }});
  each(hosts, Setting{.name = "hosts",
                      .key = "hosts",
                      .variable = "ACCELERATE_HOSTS",
                      .option = {"hosts", "LIST", "The same as gpu-a:4,gpu-b:4."},
                      .type = Text{"hosts like gpu-a:4,gpu-b:4"},
                      .member = [](auto& all) { return &all.hosts; }});
  each(hosts, Setting{.name = "mpirun_hostfile",
                      .key = "mpirun_hostfile",
                      .variable = "ACCELERATE_MPIRUN_HOSTFILE",
                      .option = {"mpirun_hostfile", "FILE", "--runner mpirun --hostfile FILE."},
                      .type = Text{"a file's name"},
                      .member = [](auto& all) { return &all.mpirun_hostfile; }});
  each(hosts, Setting{.name = "same_network",
                      .key = "same_network",
                      .variable = "ACCELERATE_SAME_NETWORK",
                      .option = {"same_network", "", "Accepted without effect: all machines must reach each other."},
                      .type = Flag{},
                      .member = [](auto& all) { return &all.same_network; }});
  each(hosts, Setting{.name = "rdzv_backend",
                      .key = "rdzv_backend",
                      .variable = "ACCELERATE_RDZV_BACKEND",
                      .option = {"rdzv_backend", "static", "Accepted without effect: it is the only backend."},
                      .type = Word{is_static, "static"},
                      .default_value = std::string("static"),
                      .member = [](auto& all) { return &all.rdzv_backend; }});
  each(hosts, Setting{.name = "role",
                      .key = "role",
                      .variable = "ACCELERATE_ROLE",
                      .option = {"role", "NAME", "ROLE_NAME of the ranks, as torchrun has it."},
                      .type = Text{"a name"},
                      .default_value = DerivedDefault{"none"},
                      .member = [](auto& all) { return &all.role; }});
  each(ends, Setting{.name = "monitor_interval",
                     .key = "monitor_interval",
                     .variable = "ACCELERATE_MONITOR_INTERVAL",
                     .option = {"monitor_interval", "SECONDS", "Accepted without effect: exits are detected at once."},
                     .type = Duration{},
                     .member = [](auto& all) { return &all.monitor_interval; }});
  const Word streams{is_stream_choice, "0 none, 1 stdout, 2 stderr, 3 both, or by rank, each once, like 0:3,1:0"};
  each(print, Setting{.name = "log_dir",
                      .key = "log_dir",
                      .variable = "ACCELERATE_LOG_DIR",
                      .option = {"log_dir", "DIR", "Each rank's output is in DIR/rank_K.log too; restarts append."},
                      .type = Text{"a folder's name"},
                      .member = [](auto& all) { return &all.log_dir; }});
  each(print, Setting{.name = "tee",
                      .key = "tee",
                      .variable = "ACCELERATE_TEE",
                      .option = {"tee", "STREAMS", "Streams for file and terminal: 0, 1, 2, 3 or 0:3,1:0."},
                      .type = streams,
                      .default_value = std::string("3"),
                      .member = [](auto& all) { return &all.tee; }});
  each(print, Setting{.name = "redirects",
                      .key = "redirects",
                      .variable = "ACCELERATE_REDIRECTS",
                      .option = {"redirects", "STREAMS", "Streams for the file alone."},
                      .type = streams,
                      .default_value = std::string("0"),
                      .member = [](auto& all) { return &all.redirects; }});
  each(print, Setting{.name = "local_ranks_filter",
                      .key = "local_ranks_filter",
                      .variable = "ACCELERATE_LOCAL_RANKS_FILTER",
                      .option = {"local_ranks_filter", "LIST", "Show the output of these ranks only, like 0,2."},
                      .type = Word{is_rank_filter, "ranks like 0,2"},
                      .default_value = DerivedDefault{"all"},
                      .member = [](auto& all) { return &all.local_ranks_filter; }});
  each(print, Setting{.name = "label",
                      .key = "label",
                      .variable = "ACCELERATE_LABEL",
                      .option = {"label", "", "[rank K] before each line, in colours on a terminal."},
                      .type = Flag{},
                      .member = [](auto& all) { return &all.label; }});
  each(print, Setting{.name = "quiet",
                      .key = "quiet",
                      .variable = "ACCELERATE_QUIET",
                      .option = {"quiet", "", "Only errors and reports of the launcher itself."},
                      .type = Flag{},
                      .member = [](auto& all) { return &all.quiet; }});
  each(ends, Setting{.name = "max_restarts",
                     .key = "max_restarts",
                     .variable = "ACCELERATE_MAX_RESTARTS",
                     .option = {"max_restarts", "N", "Number of restarts after a rank has failed."},
                     .type = Integer{0, 1'000'000},
                     .default_value = 0,
                     .member = [](auto& all) { return &all.max_restarts; }});
  each(ends, Setting{.name = "resume_code",
                     .key = "resume_code",
                     .variable = "ACCELERATE_RESUME_CODE",
                     .option = {"resume_code", "CODE", "Exit code with which ranks request a restart after saving."},
                     .type = Integer{1, 255},
                     .member = [](auto& all) { return &all.resume_code; }});
  each(ends,
       Setting{.name = "hang_timeout",
               .key = "hang_timeout",
               .variable = "ACCELERATE_HANG_TIMEOUT",
               .option = {"hang_timeout", "SECONDS", "End the job after this time without progress; 0 disables it."},
               .type = Duration{},
               .default_value = std::chrono::milliseconds(0),
               .member = [](auto& all) { return &all.hang_timeout; }});
  each(ends, Setting{.name = "grace_time",
                     .key = "grace_time",
                     .variable = "ACCELERATE_GRACE_TIME",
                     .option = {"grace_time", "SECONDS", "Time between SIGTERM and SIGKILL."},
                     .type = Duration{},
                     .default_value = kDefaultGrace,
                     .member = [](auto& all) { return &all.grace_time; }});
}

}  // namespace accelerate::launch

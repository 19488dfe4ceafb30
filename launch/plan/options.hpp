// SPDX-License-Identifier: Apache-2.0
// The command line of accelerate_launch.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/env/fsdp_settings.hpp"
#include "accelerate/env/parallelism_config.hpp"
#include "accelerate/env/settings.hpp"
#include "launch/plan/error.hpp"

namespace accelerate::launch {

/// Defaults that other parts of the launcher also use; all other defaults are only in the table.
inline constexpr std::string_view kDefaultAddress = "127.0.0.1";
inline constexpr std::string_view kAllGpus = "all";
inline constexpr int64_t kDefaultPort = 29500;
inline constexpr std::chrono::milliseconds kDefaultGrace = std::chrono::seconds(5);

/// Options of the command line; unset means "not given". Options that are not library settings are documented in
/// options_table.hpp.
struct LaunchOptions {
  env::GivenSettings settings{};         ///< settings that are passed to the ranks
  env::FsdpSettings fsdp{};              ///< settings of sharded training, which are passed to the ranks too
  env::ParallelismConfig parallelism{};  ///< sizes of the mesh, which are passed to the ranks too
  std::optional<bool> use_parallelism_config{};
  std::optional<int64_t> num_processes{};  ///< 1 to 4096, of the whole job; unset: on each machine one per visible GPU,
                                           ///< one on the CPU, without GPUs or on a device by number
  std::optional<int64_t> num_machines{};
  std::optional<int64_t> machine_rank{};
  std::optional<std::string> main_process_ip{};
  std::optional<int64_t> main_process_port{};
  std::optional<std::string> gpu_ids{};
  std::optional<bool> multi_gpu{};
  std::optional<bool> enable_cpu_affinity{};
  std::optional<std::string> ranks_per_machine{};
  std::optional<std::string> runner{};
  std::optional<std::string> hostfile{};
  std::optional<std::string> hosts{};
  std::optional<std::string> mpirun_hostfile{};
  std::optional<bool> same_network{};
  std::optional<std::string> rdzv_backend{};
  std::optional<std::string> role{};
  std::optional<std::chrono::milliseconds> monitor_interval{};
  std::optional<std::string> config_file{};
  bool use_deepspeed = false;              ///< fsdp.use_fsdp with DeepSpeed's default strategy
  bool dry_run = false;                    ///< print the plan as a shell script
  std::optional<std::string> log_dir{};    ///< if unset, there are no log files
  std::optional<std::string> tee{};        ///< format of StreamChoice; if unset, both streams if there is a log_dir
  std::optional<std::string> redirects{};  ///< the same for streams that are written to the log file only
  std::optional<std::string> local_ranks_filter{};          ///< "0,2"; if unset, the output of all ranks is shown
  std::optional<bool> label{};                              ///< "[rank 3] " before each line
  std::optional<bool> quiet{};                              ///< show errors and reports only
  std::optional<int64_t> max_restarts{};                    ///< maximum number of restarts after failures
  std::optional<int64_t> resume_code{};                     ///< if unset, no exit code requests a restart
  std::optional<std::chrono::milliseconds> hang_timeout{};  ///< 0 disables hang detection
  std::optional<std::chrono::milliseconds> grace_time{};    ///< between SIGTERM and SIGKILL
  std::vector<std::string> command{};                       ///< program and its arguments

  bool operator==(const LaunchOptions&) const = default;
};

/// Defaults from the table. Unset fields have no default or are determined later.
const LaunchOptions& default_options();

/// The given value, otherwise the default in the table, for an option that has one.
template <typename Value>
Value value_of(const LaunchOptions& options, std::optional<Value> LaunchOptions::*option) {
  return options.*option ? *(options.*option) : (default_options().*option).value();
}

/// True if the ranks train on the CPU although there are GPUs.
bool on_cpu(const LaunchOptions& options);

/// The backend that is requested by name, or nothing for "auto".
std::optional<std::string> named_backend(const LaunchOptions& options);

/// True if the requested backend cannot transfer CPU tensors.
bool needs_gpus(const LaunchOptions& options);

/// Parses "4,2". Returns nothing for another text, or for a number outside 1 to 4096.
std::optional<std::vector<int64_t>> parse_ranks(std::string_view list);

/// Either options to act on, or a text to print on stdout (--help, --version).
struct Parsed {
  LaunchOptions options;
  std::optional<std::string> print{};
};

/// \param arguments  Arguments without the program's name. The first word that is not an option starts the command.
/// \throws LaunchError (2) for an unknown option, a value out of range or a missing program.
Parsed parse_arguments(const std::vector<std::string>& arguments);

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// Plans the processes to start, without side effects.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/env/process_env.hpp"
#include "launch/plan/machine.hpp"
#include "launch/plan/options.hpp"
#include "launch/plan/runner_selection.hpp"

namespace accelerate::launch {

struct WorkerPlan {
  int64_t rank = 0;
  int64_t local_rank = 0;              ///< rank within its machine
  std::string host{};                  ///< host; empty for this machine
  std::vector<std::string> command{};  ///< program and arguments
  env::Variables environment{};        ///< complete environment
  std::vector<int> processors{};       ///< processors to bind to; if empty, those of the launcher

  bool operator==(const WorkerPlan&) const = default;
};

struct LaunchPlan {
  Runner runner = Runner::local;  ///< starts the ranks; workers are ranks, or processes that start ranks
  std::vector<WorkerPlan> workers{};
  bool serve_mpi = false;  ///< the launcher is the workers' PMIx server
  int64_t machines = 1;    ///< number of machines of the job; the workers are on one machine

  bool operator==(const LaunchPlan&) const = default;
};

/// Values that are only known at the start.
struct LaunchContext {
  std::string address{kDefaultAddress};  ///< address of rank 0
  int64_t port = 0;                      ///< port of rank 0
  bool serve_mpi = false;                ///< true if wants_mpi() and a PMIx server is available
  std::string job_id{};                  ///< random, so that unrelated jobs on the same port never join each other
  int64_t restart_count = 0;
  /// Value for the launcher that restarts all machines. If unset, the value of the options.
  std::optional<int64_t> max_restarts{};
};

/// Number of the restart attempt.
struct AttemptInfo {
  int64_t restart_count = 0;
  int64_t max_restarts = 0;
};

/// Writes the attempt's data into the environment of launchers that this launcher starts, possibly on other hosts. Not
/// passed to the ranks.
void export_start(env::Variables& variables, const AttemptInfo& start);
/// Reads the data of export_start(). Returns nothing if no launcher set it.
std::optional<AttemptInfo> import_start(const env::Variables& variables);
/// Sets the variables for ranks: TORCHELASTIC_RESTART_COUNT and TORCHELASTIC_MAX_RESTARTS.
void set_start_for_ranks(env::Variables& variables, const AttemptInfo& start);

/// Variable with the launcher's version for the per-rank wrappers that it starts, possibly on other hosts. Not passed
/// to the ranks.
inline constexpr const char* kLauncherVersionVariable = "ACCELERATE_LAUNCHER_VERSION";

/// \param options    Resolved options (resolve.hpp).
/// \param inherited  The launcher's own environment. Variables of other launchers in it are not passed to the workers.
LaunchPlan plan(const LaunchOptions& options, const Machine& machine, const env::Variables& inherited,
                const LaunchContext& wiring);

/// Sets the variables that every rank needs with every runner: the settings of the command line and the visible GPUs.
/// Removes variables that only the launcher reads, and overridden values.
void set_for_ranks(env::Variables& variables, const LaunchOptions& options);

/// \throws LaunchError (2) if a GPU backend is requested without visible GPUs or together with the CPU; if there are
///         more ranks than GPUs without permission to share them; or if multi_gpu has too few GPUs or ranks.
void check_gpus(const LaunchOptions& options, const Machine& machine);

/// \param gpus        Number of GPUs that the ranks will see according to gpu_ids.
/// \param of_machine  Number of GPUs that this process sees.
/// \throws LaunchError (2) if gpu_ids selects no GPU, because the ranks would train on the CPU.
void check_gpu_ids(const LaunchOptions& options, int64_t gpus, int64_t of_machine);

/// Returns this machine as the ranks will see it. \throws LaunchError as check_gpu_ids() does.
Machine machine_of_ranks(const LaunchOptions& options, const env::Variables& variables);

/// Checks multi_gpu without information about the machines. \throws LaunchError (2)
void check_multi_gpu(const LaunchOptions& options, int64_t ranks);

/// Returns the number of ranks on this machine that the options request.
int64_t number_of_processes(const LaunchOptions& options, const Machine& machine);

/// Returns one line that states the chosen number of ranks and how to change it. Returns nothing if num_processes is
/// given.
std::optional<std::string> chosen_ranks_text(const LaunchOptions& options, const Machine& machine);

/// Returns a message of one line if main_process_ip is given and ignored, because all ranks are on one machine.
std::optional<std::string> unused_address_text(const LaunchOptions& options);

/// Returns a warning of one line if ranks of this machine share processors.
std::optional<std::string> oversubscription_warning(const LaunchOptions& options, const Machine& machine);

/// True if MPI is requested (by option, variable or config file; the options are resolved), or if it is the default:
/// several CPU ranks on one machine.
bool wants_mpi(const LaunchOptions& options, const Machine& machine);

/// True for a variable with which torchrun, MPI or PMIx describe a process's place in a job. A partial set of them
/// would contradict our own variables.
///
/// \param serve_mpi  If true, variables of the batch system (Slurm, PBS, ...) are included, because MPI reads its
///                   wire-up from them. MPI tuning by the user (OMPI_MCA_btl and similar) is always kept.
bool is_foreign_launcher_variable(std::string_view name, bool serve_mpi);

}  // namespace accelerate::launch

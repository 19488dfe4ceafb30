// SPDX-License-Identifier: Apache-2.0
// What will be started, decided without starting anything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/env/process_env.hpp"
#include "launch/plan/choose.hpp"
#include "launch/plan/machine.hpp"
#include "launch/plan/options.hpp"

namespace accelerate::launch {

struct WorkerPlan {
  int64_t rank = 0;
  int64_t local_rank = 0;              ///< among the ranks of its machine
  std::string host{};                  ///< where it runs; empty: on this machine
  std::vector<std::string> command{};  ///< program and arguments
  env::Variables environment{};        ///< all of it, not an addition to ours
  std::vector<int> processors{};       ///< that it keeps to; empty: those of the launcher

  bool operator==(const WorkerPlan&) const = default;
};

struct LaunchPlan {
  Runner runner = Runner::local;  ///< what starts the ranks; the workers are ranks, or what it needs to start them
  std::vector<WorkerPlan> workers{};
  bool serve_mpi = false;  ///< the launcher is the workers' PMIx server
  int64_t machines = 1;    ///< of the job; the workers are one machine's

  bool operator==(const LaunchPlan&) const = default;
};

/// What only a doer can find out.
struct Wiring {
  std::string address{default_address};  ///< of rank 0
  int64_t port = 0;                      ///< where it will listen
  bool serve_mpi = false;                ///< wants_mpi(), and a server can be had
  std::string job_id{};                  ///< drawn at random: strangers who share a port never meet
  int64_t restart_count = 0;
  std::optional<int64_t> max_restarts{};  ///< of who starts all machines again; unset: the options'
};

/// Which start of the job this is.
struct StartOfJob {
  int64_t restart_count = 0;
  int64_t max_restarts = 0;
};

/// What the launcher that starts all of them again tells those that it starts, on other hosts perhaps. Reaches no rank.
void tell_start(env::Variables& variables, const StartOfJob& start);
/// Nothing where no launcher did.
std::optional<StartOfJob> told_start(const env::Variables& variables);
/// As ranks read it: TORCHELASTIC_RESTART_COUNT and TORCHELASTIC_MAX_RESTARTS.
void set_start_for_ranks(env::Variables& variables, const StartOfJob& start);

/// In which a launcher tells those that stand around its ranks, on other hosts perhaps, its own version. Reaches no
/// rank.
inline constexpr const char* version_of_starter = "ACCELERATE_LAUNCHER_VERSION";

/// options     resolved (resolve.hpp)
/// inherited   the launcher's own environment; what other launchers left in it does not reach the workers
LaunchPlan plan(const LaunchOptions& options, const Machine& machine, const env::Variables& inherited,
                const Wiring& wiring);

/// What every rank is told, whoever starts it: the settings of the command line, the GPUs it sees. What
/// the launcher itself read, or what lost, goes.
void set_for_ranks(env::Variables& variables, const LaunchOptions& options);

/// Throws LaunchError (2) when a backend of GPUs is asked for and none is visible, or the CPU is asked for elsewhere;
/// when there are more ranks than GPUs and nobody said that they may share; when multi_gpu has too few of either.
void check_gpus(const LaunchOptions& options, const Machine& machine);

/// gpus         that the ranks will see, by gpu_ids
/// of_machine   that this process sees
/// Throws LaunchError (2) where gpu_ids names none of them, and the ranks would train on the CPU.
void check_gpu_ids(const LaunchOptions& options, int64_t gpus, int64_t of_machine);

/// This machine as the ranks will see it. Throws what check_gpu_ids() throws.
Machine machine_of_ranks(const LaunchOptions& options, const env::Variables& variables);

/// What of multi_gpu is known before anyone looks at the machines of all ranks. Throws LaunchError (2).
void check_multi_gpu(const LaunchOptions& options, int64_t ranks);

/// Ranks that options ask for, on this machine.
int64_t number_of_processes(const LaunchOptions& options, const Machine& machine);

/// What was chosen where nothing was said, and how to choose; nothing where num_processes is given. One line.
std::optional<std::string> what_was_chosen(const LaunchOptions& options, const Machine& machine);

/// That main_process_ip is passed over, where it is given and one machine has all ranks, which meet there. One line.
std::optional<std::string> address_not_used(const LaunchOptions& options);

/// A warning where ranks of this machine share processors. One line.
std::optional<std::string> too_many_for_the_processors(const LaunchOptions& options, const Machine& machine);

/// MPI is asked for (by option, variable or config file: options are resolved), or is the default: several ranks on the
/// CPU of one machine.
bool wants_mpi(const LaunchOptions& options, const Machine& machine);

/// A variable that tells a process its place in a job of torchrun, MPI or PMIx. Half of that would contradict ours.
///
/// serve_mpi   the batch system's too (Slurm, PBS, ...), because MPI takes its wire-up from there; tuning that a user
///             gave MPI (OMPI_MCA_btl and the like) always stays
bool belongs_to_another_launcher(std::string_view name, bool serve_mpi);

}  // namespace accelerate::launch

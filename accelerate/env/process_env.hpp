// SPDX-License-Identifier: Apache-2.0
// Ranks and rendezvous address of a process: the contract between launcher and library.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate::env {

/// Environment variables as a value, so that reading them is a pure function.
using Variables = std::map<std::string, std::string>;

/// Returns a copy of this process's environment.
Variables current_variables();

/// Launcher that set the variables.
enum class Source { single, torchrun, open_mpi, pmi, mvapich, pmix, slurm };

std::string_view launcher_name(Source source);

/// One process of a job. The default is a job of one process.
struct ProcessEnv {
  Source source = Source::single;
  int64_t rank = 0;              ///< 0 <= rank < world_size
  int64_t world_size = 1;        ///< processes of the job
  int64_t local_rank = 0;        ///< 0 <= local_rank < local_world_size
  int64_t local_world_size = 1;  ///< processes of the job on this machine
  /// Address on which rank 0 listens. Unset if the job fits one machine or if MPI distributes the address.
  std::optional<std::string> master_addr{};
  std::optional<int64_t> master_port{};
  /// How often the launcher restarted this job; keys in the rendezvous store carry it.
  int64_t restart_count = 0;
  /// True if torchrun's agent hosts the store at master_addr:master_port, so that every rank is a client.
  bool agent_store = false;
  /// Identifies the job. It is part of every key in the rendezvous store, so unrelated jobs on the same port never join
  /// each other. Value of ACCELERATE_JOB_ID (random, set by accelerate_launch); otherwise the launcher's id: torchrun's
  /// TORCHELASTIC_RUN_ID, Slurm's job and step, PMIx's namespace. "" if none is available.
  std::string job_id{};

  /// True if processes of the job are on other machines.
  [[nodiscard]] bool spans_machines() const { return local_world_size != world_size; }
  bool operator==(const ProcessEnv&) const = default;
};

/// Reads the first complete set of variables of torchrun, Open MPI, PMI (MPICH, Intel MPI), PMIx, MVAPICH or Slurm.
/// Without any set, the job has one process.
/// \throws Error (environment), with the variables and their values, for a partial set without a complete one, for a
///   partial torchrun set with another RANK or WORLD_SIZE than the complete set, for text instead of a number, for a
///   rank outside the world size, or for a contradiction within one set.
ProcessEnv read_process_env(const Variables& variables);

/// Returns the process as torchrun's variables. read_process_env(torchrun_variables(e)) equals e except for the source.
Variables torchrun_variables(const ProcessEnv& process);

}  // namespace accelerate::env

// SPDX-License-Identifier: Apache-2.0
// Which process of which job this is: the contract between whatever started us and the library.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate::env {

/// Environment variables as a value, so that reading them is a pure function.
using Variables = std::map<std::string, std::string>;

/// A copy of this process's environment.
Variables current_variables();

/// Whose variables described the job.
enum class Source { single, torchrun, open_mpi, pmi, mvapich, pmix, slurm };

std::string_view name(Source source);

/// One process of a job. The default is a job of one process.
struct ProcessEnv {
  Source source = Source::single;
  int64_t rank = 0;              ///< 0 <= rank < world_size
  int64_t world_size = 1;        ///< processes of the job
  int64_t local_rank = 0;        ///< 0 <= local_rank < local_world_size
  int64_t local_world_size = 1;  ///< processes of the job on this machine
  /// Where rank 0 listens. Unset: the job fits one machine, or MPI carries the address.
  std::optional<std::string> master_addr{};
  std::optional<int64_t> master_port{};
  /// How often the launcher restarted this job; keys in the rendezvous store carry it.
  int64_t restart_count = 0;
  /// torchrun's agent already holds the store at master_addr:master_port, so every rank is a client.
  bool agent_store = false;
  /// Tells this job from every other one: part of every key in the rendezvous store, so that strangers who share a port
  /// never meet. ACCELERATE_JOB_ID (accelerate_launch draws it at random), else what the launcher has: torchrun's
  /// TORCHELASTIC_RUN_ID, Slurm's job and step, PMIx's namespace. "" where nothing tells.
  std::string job_id{};

  bool operator==(const ProcessEnv&) const = default;
};

/// Reads the first complete set of torchrun, Open MPI, PMI (MPICH, Intel MPI), PMIx, MVAPICH, Slurm; none: one process.
/// Throws Error (environment), naming the variables and their values, for half a set without a complete one, half a set
/// of torchrun with another RANK or WORLD_SIZE than the complete one, text instead of a number, a rank outside its
/// world or a contradiction inside one set.
ProcessEnv read(const Variables& variables);

/// The torchrun names of it; read(write(e)) equals e but for the source.
Variables write(const ProcessEnv& process);

}  // namespace accelerate::env

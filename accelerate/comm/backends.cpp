// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/backends.hpp"

#include <algorithm>
#include <array>

namespace accelerate::comm {
namespace {

const std::string* find(const env::Variables& variables, const std::string& name) {
  const auto at = variables.find(name);
  return at == variables.end() || at->second.empty() ? nullptr : &at->second;
}

/// Open MPI or a PMIx server started the ranks of this job. What another job around ours left does not count: torchrun
/// inside mpirun or srun hands every rank the one MPI identity of its agent.
bool has_mpi_wire_up(const env::Variables& variables, const Place& place) {
  if (const std::string* size = find(variables, "OMPI_COMM_WORLD_SIZE")) {
    const std::string* rank = find(variables, "OMPI_COMM_WORLD_RANK");
    return *size == std::to_string(place.world_size) && rank != nullptr && *rank == std::to_string(place.rank);
  }
  if (find(variables, "TORCHELASTIC_RUN_ID") != nullptr) return false;
  return find(variables, "PMIX_NAMESPACE") != nullptr || find(variables, "PMIX_RANK") != nullptr;
}

const BackendRow& row_named(std::string_view name, std::span<const BackendRow* const> table, const Place& place,
                            std::string_view asked_by) {
  const auto row = std::find_if(table.begin(), table.end(), [&](const BackendRow* each) { return each->name == name; });
  if (row == table.end() || name == "nccl") {
    base::fail(ErrorKind::usage, place, "connect", "{} is '{}', must be mpi or gloo", asked_by, name);
  }
  if ((*row)->connect == nullptr) {
    base::fail(ErrorKind::environment, place, "connect", "{} is '{}', which this build lacks; {}", asked_by, name,
               (*row)->missing);
  }
  return **row;
}

}  // namespace

std::span<const BackendRow* const> backend_table() {
  static const std::array rows{&mpi_row(), &gloo_row(), &nccl_row()};
  return rows;
}

std::string choose_backend(const env::Variables& variables, const ConnectOptions& options,
                           std::span<const BackendRow* const> table, const Place& place) {
  if (options.backend) return std::string(row_named(*options.backend, table, place, "backend").name);
  if (const auto* asked = find(variables, "ACCELERATE_BACKEND")) {
    return std::string(row_named(*asked, table, place, "ACCELERATE_BACKEND").name);
  }
  const bool mpi_is_built = std::any_of(table.begin(), table.end(), [](const BackendRow* each) {
    return each->name == "mpi" && each->connect != nullptr;
  });
  if (mpi_is_built && has_mpi_wire_up(variables, place)) return "mpi";
  return std::string(row_named("gloo", table, place, "the backend").name);
}

}  // namespace accelerate::comm

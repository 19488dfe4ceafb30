// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/backend_table.hpp"

#include <algorithm>
#include <array>

#include "accelerate/env/parse.hpp"

namespace accelerate::comm {
namespace {

constexpr std::string_view kAsked = "backend (ACCELERATE_BACKEND)";

/// Open MPI or a PMIx server started the ranks of this job. What another job around ours left does not count: torchrun
/// inside mpirun or srun hands every rank the one MPI identity of its agent.
bool has_mpi_wire_up(const env::Variables& variables, const Place& place) {
  using env::find;
  if (const auto size = find(variables, "OMPI_COMM_WORLD_SIZE")) {
    return size == std::to_string(place.world_size) &&
           find(variables, "OMPI_COMM_WORLD_RANK") == std::to_string(place.rank);
  }
  if (find(variables, "TORCHELASTIC_RUN_ID")) return false;
  return find(variables, "PMIX_NAMESPACE") || find(variables, "PMIX_RANK");
}

/// The one look-up.
const BackendRow& row_named(std::string_view name, std::span<const BackendRow* const> table, const Place& place,
                            std::string_view asked_by) {
  const auto row = std::find_if(table.begin(), table.end(), [&](const BackendRow* each) { return each->name == name; });
  if (row == table.end()) {
    base::fail(ErrorKind::usage, place, "connect", "{} is '{}', must be mpi or gloo", asked_by, name);
  }
  if ((*row)->connect == nullptr) {
    base::fail(ErrorKind::environment, place, "connect", "{} is '{}', which this build lacks; {}", asked_by, name,
               (*row)->missing);
  }
  return **row;
}

std::optional<std::string> asked_backend(const env::Variables& variables, const ConnectOptions& options) {
  return options.backend ? options.backend : env::find(variables, "ACCELERATE_BACKEND");
}

}  // namespace

std::span<const BackendRow* const> backend_table() {
  static const std::array rows{&mpi_row(), &gloo_row(), &nccl_row()};
  return rows;
}

const BackendRow& choose_backend(const env::Variables& variables, const ConnectOptions& options,
                                 std::span<const BackendRow* const> table, const Place& place) {
  auto asked = asked_backend(variables, options);
  if (asked == "nccl") {
    if (!options.device || !options.device->is_cuda()) {
      base::fail(ErrorKind::environment, place, "connect",
                 "{} is 'nccl', which needs a GPU, and this rank computes on the CPU; use mpi or gloo, or unset it",
                 kAsked);
    }
    asked.reset();  // what GPU tensors get anyway: for those on the CPU nothing is asked
  }
  if (asked) return row_named(*asked, table, place, kAsked);
  const bool mpi_is_built = std::any_of(table.begin(), table.end(), [](const BackendRow* each) {
    return each->name == "mpi" && each->connect != nullptr;
  });
  return row_named(mpi_is_built && has_mpi_wire_up(variables, place) ? "mpi" : "gloo", table, place,
                   "the backend for CPU tensors");
}

const BackendRow& gpu_backend(std::span<const BackendRow* const> table, const Place& place) {
  return row_named("nccl", table, place, "the backend for GPU tensors");
}

}  // namespace accelerate::comm

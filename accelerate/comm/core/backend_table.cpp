// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/core/backend_table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "accelerate/env/backends.hpp"
#include "accelerate/env/parse.hpp"

namespace accelerate::comm {
namespace {

constexpr std::string_view kRequestedBy = "backend (ACCELERATE_BACKEND)";

/// True if Open MPI or a PMIx server started the ranks of this job. Variables of an enclosing job do not count: with
/// torchrun inside mpirun or srun, every rank inherits the single MPI identity of its agent.
bool has_mpi_wire_up(const env::Variables& variables, const RankContext& place) {
  using env::find;
  if (const auto size = find(variables, "OMPI_COMM_WORLD_SIZE")) {
    return size == std::to_string(place.world_size) &&
           find(variables, "OMPI_COMM_WORLD_RANK") == std::to_string(place.rank);
  }
  if (find(variables, "TORCHELASTIC_RUN_ID")) return false;
  return find(variables, "PMIX_NAMESPACE") || find(variables, "PMIX_RANK");
}

const BackendRow* find_named(std::string_view name, std::span<const BackendRow* const> table) {
  const auto row = std::find_if(table.begin(), table.end(), [&](const BackendRow* each) { return each->name == name; });
  return row == table.end() ? nullptr : *row;
}

const BackendRow* find_for(c10::DeviceType device, std::span<const BackendRow* const> table) {
  const auto row =
      std::find_if(table.begin(), table.end(), [&](const BackendRow* each) { return each->device == device; });
  return row == table.end() ? nullptr : *row;
}

/// Returns "mpi or gloo".
std::string choice_for(c10::DeviceType device, std::span<const BackendRow* const> table) {
  std::string text;
  for (const auto* row : table) {
    if (row->device != device) continue;
    text += text.empty() ? "" : " or ";
    text += row->name;
  }
  return text;
}

std::string device_name(c10::DeviceType device) {
  return device == c10::DeviceType::CUDA ? "GPU" : c10::DeviceTypeName(device, /*lower_case=*/true);
}

const BackendRow& must_be_built(const BackendRow* row, const RankContext& place, std::string_view requested_by) {
  if (row->connect != nullptr) return *row;
  base::fail(ErrorKind::environment, place, "connect", "{} is '{}', which this build lacks; {}", requested_by,
             row->name, row->missing);
}

[[noreturn]] void refuse_on_this_device(const BackendRow& requested, std::span<const BackendRow* const> table,
                                        const RankContext& place) {
  base::fail(ErrorKind::environment, place, "connect",
             "{} is '{}', which needs a {}, and this rank computes on the CPU; use {}, or unset it", kRequestedBy,
             requested.name, device_name(requested.device), choice_for(c10::DeviceType::CPU, table));
}

struct Rows {
  std::mutex mutex;
  std::vector<const BackendRow*> all{
#define ACCELERATE_BACKEND(name, device) &name##_row(),
#include "accelerate/env/backends.def"
#undef ACCELERATE_BACKEND
  };
};

Rows& rows() {
  static Rows table;
  return table;
}

std::optional<std::string> requested_backend(const env::Variables& variables, const ConnectOptions& options) {
  const auto requested = options.backend ? options.backend : env::find(variables, "ACCELERATE_BACKEND");
  return requested == env::kAnyBackend ? std::nullopt : requested;
}

}  // namespace

std::vector<const BackendRow*> backend_table() {
  const std::lock_guard lock(rows().mutex);
  return rows().all;
}

void add_backend(const BackendRow& row) {
  env::add_backend({std::string(row.name), c10::DeviceTypeName(row.device, /*lower_case=*/true)});
  const std::lock_guard lock(rows().mutex);
  auto& all = rows().all;
  if (std::find(all.begin(), all.end(), &row) == all.end()) all.push_back(&row);
}

const BackendRow& choose_backend(const env::Variables& variables, const ConnectOptions& options,
                                 std::span<const BackendRow* const> table, const RankContext& place) {
  if (const auto requested = requested_backend(variables, options)) {
    const BackendRow* row = find_named(*requested, table);
    if (row == nullptr) {
      base::fail(ErrorKind::usage, place, "connect", "{} is '{}', must be {}", kRequestedBy, *requested,
                 choice_for(c10::DeviceType::CPU, table));
    }
    if (row->device == c10::DeviceType::CPU) return must_be_built(row, place, kRequestedBy);
    if (!options.device || options.device->type() != row->device) refuse_on_this_device(*row, table, place);
    // The name of the device's own backend is not a request for a CPU backend.
  }
  const BackendRow* mpi = find_named("mpi", table);
  if (mpi != nullptr && mpi->connect != nullptr && has_mpi_wire_up(variables, place)) return *mpi;
  return must_be_built(find_named("gloo", table), place, "the backend for CPU tensors");
}

const BackendRow& device_backend(c10::DeviceType device, std::span<const BackendRow* const> table,
                                 const RankContext& place) {
  if (const BackendRow* row = find_for(device, table)) {
    return must_be_built(row, place, fmt::format("the backend for {} tensors", device_name(device)));
  }
  base::fail(ErrorKind::environment, place, "connect", "no backend carries {} tensors between ranks",
             device_name(device));
}

}  // namespace accelerate::comm

// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "accelerate/env/settings_table.hpp"

namespace accelerate::launch {
namespace {

template <size_t N>
bool starts_with_one_of(std::string_view name, const std::array<std::string_view, N>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](auto prefix) { return name.starts_with(prefix); });
}

/// What Open MPI needs to start fast and right under us. The user's own choices win.
void add_mpi_defaults(env::Variables& variables, int64_t ranks, const Machine& machine) {
  // Without this hint Open MPI 4 overlooks a PMIx server that is not its own: every rank comes up as rank 0 of 1.
  variables["OMPI_MCA_schizo"] = "^orte,ompi";
  // Probing for networks would take two thirds of MPI_Init, and btl tcp would listen on all interfaces.
  variables.try_emplace("OMPI_MCA_pml", "ob1");
  variables.try_emplace("OMPI_MCA_btl", "vader,self");
  if (ranks > machine.usable_cpus) variables.try_emplace("OMPI_MCA_mpi_yield_when_idle", "1");
}

/// A training step on a CPU frees megabytes that the next one asks for again. By default glibc gives them back to the
/// kernel, which clears every page anew: a sixth of BasicNet's step on two ranks. The user's own tuning wins.
void add_malloc_defaults(env::Variables& variables) {
  const auto tunables = env::find(variables, "GLIBC_TUNABLES").value_or("");
  if (tunables.find("glibc.malloc.") != std::string::npos) return;
  variables.try_emplace("MALLOC_MMAP_THRESHOLD_", std::to_string(int64_t{32} << 20));  // the largest that glibc takes
  variables.try_emplace("MALLOC_TRIM_THRESHOLD_", std::to_string(int64_t{1} << 30));
}

/// What was given on the command line.
void add_settings(env::Variables& variables, const LaunchOptions& options) {
  env::for_each_setting([&](const auto& row) {
    const auto& value = row.of(options.settings);
    if (value) variables[std::string(row.variable)] = row.type.text(*value);
  });
}

/// What lost to an option, so that the ranks need not say it once more.
void drop_losers(env::Variables& variables, const LaunchOptions& options) {
  // Every rank with a GPU takes the GPUs' backend; the variable names the CPU's.
  if (needs_gpus(options)) variables.erase("ACCELERATE_BACKEND");
  const auto text = env::find(variables, "ACCELERATE_TORCH_DEVICE");
  const auto device = env::parse_device(text.value_or("cpu"));
  if (!device || device->is_cpu()) return;
  if (on_cpu(options)) {
    variables.erase("ACCELERATE_TORCH_DEVICE");
  } else if (options.settings.device) {
    variables.erase("ACCELERATE_USE_CPU");
  }
}

}  // namespace

bool belongs_to_another_launcher(std::string_view name, bool serve_mpi) {
  constexpr std::array<std::string_view, 8> users_tuning{"OMPI_MCA_btl",   "OMPI_MCA_coll", "OMPI_MCA_pml",
                                                         "OMPI_MCA_mpi_",  "OMPI_MCA_osc",  "OMPI_MCA_topo",
                                                         "OMPI_MCA_opal_", "OMPI_MCA_io"};
  constexpr std::array<std::string_view, 8> prefixes{"TORCHELASTIC_", "OMPI_", "PMIX_", "PMI_",
                                                     "ORTE_",         "OPAL_", "PRTE_", "MV2_COMM_WORLD_"};
  constexpr std::array<std::string_view, 6> batch_systems{"SLURM_", "JSM_", "FLUX_", "PBS_", "ALPS_", "HYDRA_"};
  constexpr std::array<std::string_view, 7> names{"GROUP_RANK",      "GROUP_WORLD_SIZE", "ROLE_RANK",      "ROLE_NAME",
                                                  "ROLE_WORLD_SIZE", "MPI_LOCALRANKID",  "MPI_LOCALNRANKS"};
  if (starts_with_one_of(name, users_tuning)) return false;
  return starts_with_one_of(name, prefixes) || (serve_mpi && starts_with_one_of(name, batch_systems)) ||
         std::find(names.begin(), names.end(), name) != names.end();
}

int64_t number_of_processes(const LaunchOptions& options, const Machine& machine) {
  return options.num_processes.value_or(on_cpu(options) ? 1 : std::max<int64_t>(1, machine.gpus));
}

bool wants_mpi(const LaunchOptions& options, const Machine& machine) {
  if (options.settings.backend) return options.settings.backend == "mpi";
  return (on_cpu(options) || machine.gpus == 0) && number_of_processes(options, machine) > 1;
}

void check_gpus(const LaunchOptions& options, const Machine& machine) {
  if (!needs_gpus(options)) return;
  const std::string& backend = *options.settings.backend;
  if (on_cpu(options)) {
    fail(ErrorKind::usage,
         "--backend {} needs GPUs, but ACCELERATE_USE_CPU, ACCELERATE_TORCH_DEVICE or the config file asks for the "
         "CPU; use {}",
         backend, env::backend_choice("cpu"));
  }
  if (machine.gpus > 0) return;
  fail(ErrorKind::usage,
       "--backend {} needs GPUs, but {} are visible; use {}, or look at nvidia-smi and CUDA_VISIBLE_DEVICES", backend,
       machine.gpus, env::backend_choice("cpu"));
}

LaunchPlan plan(const LaunchOptions& options, const Machine& machine, const env::Variables& inherited,
                const Wiring& wiring) {
  const int64_t ranks = number_of_processes(options, machine);
  env::Variables common = inherited;
  std::erase_if(common,
                [&](const auto& variable) { return belongs_to_another_launcher(variable.first, wiring.serve_mpi); });
  add_settings(common, options);
  drop_losers(common, options);
  if (wiring.serve_mpi) add_mpi_defaults(common, ranks, machine);
  if (on_cpu(options) || machine.gpus == 0) add_malloc_defaults(common);

  LaunchPlan result{.serve_mpi = wiring.serve_mpi};
  for (int64_t rank = 0; rank < ranks; ++rank) {
    WorkerPlan worker{.rank = rank, .command = options.command, .environment = common};
    const env::ProcessEnv place{.source = env::Source::torchrun,
                                .rank = rank,
                                .world_size = ranks,
                                .local_rank = rank,
                                .local_world_size = ranks,
                                .master_addr = "127.0.0.1",
                                .master_port = wiring.port,
                                .job_id = wiring.job_id};
    for (const auto& [name, value] : env::write(place)) worker.environment[name] = value;
    result.workers.push_back(std::move(worker));
  }
  return result;
}

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "accelerate/env/fsdp_table.hpp"
#include "accelerate/env/parallelism_table.hpp"
#include "accelerate/env/settings_table.hpp"
#include "launch/plan/cpu_affinity.hpp"
#include "launch/plan/machine_placement.hpp"
#include "launch/plan/options_table.hpp"

namespace accelerate::launch {
namespace {

template <size_t N>
bool starts_with_one_of(std::string_view name, const std::array<std::string_view, N>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](auto prefix) { return name.starts_with(prefix); });
}

/// Sets defaults that Open MPI needs for a fast and correct start under this launcher. User settings have precedence.
void add_mpi_defaults(env::Variables& variables, int64_t ranks, const Machine& machine) {
  // Without this setting Open MPI 4 ignores foreign PMIx servers, and every rank starts as rank 0 of 1.
  variables["OMPI_MCA_schizo"] = "^orte,ompi";
  // Probing for networks would take two thirds of MPI_Init, and btl tcp would listen on all interfaces.
  variables.try_emplace("OMPI_MCA_pml", "ob1");
  variables.try_emplace("OMPI_MCA_btl", "vader,self");
  if (ranks > machine.usable_cpus) variables.try_emplace("OMPI_MCA_mpi_yield_when_idle", "1");
}

/// A training step on the CPU frees megabytes that the next step allocates again. By default glibc returns the memory
/// to the kernel, which clears every page again: one sixth of BasicNet's step on two ranks. User settings win.
void add_malloc_defaults(env::Variables& variables) {
  const auto tunables = env::find(variables, "GLIBC_TUNABLES").value_or("");
  if (tunables.find("glibc.malloc.") != std::string::npos) return;
  variables.try_emplace("MALLOC_MMAP_THRESHOLD_", std::to_string(int64_t{32} << 20));  // the maximum in glibc
  variables.try_emplace("MALLOC_TRIM_THRESHOLD_", std::to_string(int64_t{1} << 30));
}

/// Adds the settings of the command line.
void add_settings(env::Variables& variables, const LaunchOptions& options) {
  const auto add = [&](const auto& row, const auto& value) {
    if (value) variables[std::string(row.variable)] = row.type.text(*value);
  };
  env::for_each_setting([&](const auto& row) { add(row, row.of(options.settings)); });
  env::for_each_fsdp_setting([&](const auto& row) { add(row, row.of(options.fsdp)); });
  const auto use_mesh = env::use_parallelism_row();
  add(use_mesh, use_mesh.of(options));
  env::for_each_parallelism_setting([&](const auto& row) { add(row, row.of(options.parallelism)); });
}

/// Passed between launchers.
constexpr const char* kRestartOfJob = "ACCELERATE_RESTART_COUNT";
constexpr const char* kRestartsOfJob = "ACCELERATE_RESTARTS_OF_JOB";

/// Removes variables that only the launcher reads.
void drop_launcher_variables(env::Variables& variables) {
  variables.erase("ACCELERATE_CONFIG_FILE");
  for (const char* name : {kRestartOfJob, kRestartsOfJob, kLauncherVersionVariable}) variables.erase(name);
  for_each_option([&](std::string_view /*group*/, const auto& row) { variables.erase(std::string(row.variable)); });
}

/// Removes values that an option overrides, so that the ranks do not log the conflict again.
void drop_overridden(env::Variables& variables, const LaunchOptions& options) {
  // Every rank with a GPU uses the GPU backend; the variable would select a CPU backend.
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

void check_ranks_per_gpu(const LaunchOptions& options, const Machine& machine) {
  const auto place = place_of(options, machine);
  const bool on_gpus = machine.gpus > 0 && !on_cpu(options);
  if (options.multi_gpu.value_or(false) && !on_cpu(options) && !on_gpus) {
    fail(ErrorKind::usage, "--multi_gpu, but 0 NVIDIA GPUs are visible");
  }
  check_multi_gpu(options, place.world_size());
  if (!on_gpus || options.settings.allow_shared_gpus.value_or(false) || options.settings.device) return;
  if (place.ranks_here() > machine.gpus) {
    fail(ErrorKind::usage,
         "{} ranks on this machine, but {} GPU{} visible; start fewer, or --allow_shared_gpus, or --cpu",
         place.ranks_here(), machine.gpus, machine.gpus == 1 ? " is" : "s are");
  }
}

}  // namespace

bool is_foreign_launcher_variable(std::string_view name, bool serve_mpi) {
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

void export_start(env::Variables& variables, const AttemptInfo& start) {
  variables[kRestartOfJob] = fmt::to_string(start.restart_count);
  variables[kRestartsOfJob] = fmt::to_string(start.max_restarts);
}

std::optional<AttemptInfo> import_start(const env::Variables& variables) {
  const auto count = env::parse_integer(env::find(variables, kRestartOfJob).value_or(""));
  if (!count) return std::nullopt;
  return AttemptInfo{*count, env::parse_integer(env::find(variables, kRestartsOfJob).value_or("")).value_or(0)};
}

void set_start_for_ranks(env::Variables& variables, const AttemptInfo& start) {
  variables["TORCHELASTIC_RESTART_COUNT"] = fmt::to_string(start.restart_count);
  variables["TORCHELASTIC_MAX_RESTARTS"] = fmt::to_string(start.max_restarts);
}

int64_t number_of_processes(const LaunchOptions& options, const Machine& machine) {
  return place_of(options, machine).ranks_here();
}

bool wants_mpi(const LaunchOptions& options, const Machine& machine) {
  if (const auto backend = named_backend(options)) return backend == "mpi";
  const auto place = place_of(options, machine);
  return (on_cpu(options) || machine.gpus == 0) && place.machines() == 1 && place.world_size() > 1;
}

std::optional<std::string> chosen_ranks_text(const LaunchOptions& options, const Machine& machine) {
  if (options.num_processes || options.ranks_per_machine) return std::nullopt;
  const int64_t ranks = number_of_processes(options, machine);
  const auto* what = ranks == 1 ? "rank" : "ranks";
  if (on_cpu(options)) return fmt::format("{} {} on the CPU; --num_processes N starts more", ranks, what);
  if (machine.gpus == 0) {  // a rank that finds another accelerator uses it
    return fmt::format("{} {}, as no NVIDIA GPU is visible, and others are not counted; --num_processes N starts more",
                       ranks, what);
  }
  return fmt::format("{} {}, one per visible GPU; --num_processes N or --cpu chooses otherwise", ranks, what);
}

std::optional<std::string> unused_address_text(const LaunchOptions& options) {
  const auto& given = options.main_process_ip;
  if (!given || given == kDefaultAddress || value_of(options, &LaunchOptions::num_machines) > 1) return std::nullopt;
  return fmt::format("main_process_ip {} is not used on one machine; its ranks use {}", *given, kDefaultAddress);
}

std::optional<std::string> oversubscription_warning(const LaunchOptions& options, const Machine& machine) {
  const int64_t ranks = number_of_processes(options, machine);
  if (ranks <= machine.usable_cpus || !(on_cpu(options) || machine.gpus == 0)) return std::nullopt;
  return fmt::format("{} ranks share {} processor{}, which is slower than one rank on each", ranks, machine.usable_cpus,
                     machine.usable_cpus == 1 ? "" : "s");
}

void check_multi_gpu(const LaunchOptions& options, int64_t ranks) {
  if (!options.multi_gpu.value_or(false)) return;
  if (on_cpu(options)) fail(ErrorKind::usage, "--multi_gpu is given, but the CPU is requested too");
  if (ranks < 2) fail(ErrorKind::usage, "--multi_gpu with num_processes {}, must be at least 2", ranks);
}

void check_gpu_ids(const LaunchOptions& options, int64_t gpus, int64_t of_machine) {
  if (gpus > 0 || of_machine == 0 || on_cpu(options)) return;
  fail(ErrorKind::usage, "gpu_ids is '{}', which begins with none of the {} NVIDIA GPUs here; numbers are from 0 to {}",
       options.gpu_ids.value_or(""), of_machine, of_machine - 1);
}

Machine machine_of_ranks(const LaunchOptions& options, const env::Variables& variables) {
  if (!options.gpu_ids || options.gpu_ids == kAllGpus) return this_machine(variables);
  Machine machine = this_machine(variables, options.gpu_ids);
  check_gpu_ids(options, machine.gpus, this_machine(variables).gpus);
  return machine;
}

void check_gpus(const LaunchOptions& options, const Machine& machine) {
  check_ranks_per_gpu(options, machine);
  if (!needs_gpus(options)) return;
  const std::string& backend = *options.settings.backend;
  if (on_cpu(options)) {
    fail(ErrorKind::usage,
         "--backend {} needs GPUs, but ACCELERATE_USE_CPU, ACCELERATE_TORCH_DEVICE or the config file requests the "
         "CPU; use {}",
         backend, env::backend_choice("cpu"));
  }
  if (machine.gpus > 0) return;
  fail(ErrorKind::usage,
       "--backend {} needs GPUs, but {} are visible; use {}, or look at nvidia-smi and CUDA_VISIBLE_DEVICES", backend,
       machine.gpus, env::backend_choice("cpu"));
}

void set_for_ranks(env::Variables& variables, const LaunchOptions& options) {
  drop_launcher_variables(variables);
  add_settings(variables, options);
  drop_overridden(variables, options);
  if (options.role) variables["ROLE_NAME"] = *options.role;
  if (options.gpu_ids && options.gpu_ids != kAllGpus) variables["CUDA_VISIBLE_DEVICES"] = *options.gpu_ids;
}

LaunchPlan plan(const LaunchOptions& options, const Machine& machine, const env::Variables& inherited,
                const LaunchContext& wiring) {
  const MachinePlacement job = place_of(options, machine);
  env::Variables common = inherited;
  std::erase_if(common,
                [&](const auto& variable) { return is_foreign_launcher_variable(variable.first, wiring.serve_mpi); });
  set_for_ranks(common, options);
  set_start_for_ranks(
      common, {wiring.restart_count, wiring.max_restarts.value_or(value_of(options, &LaunchOptions::max_restarts))});
  if (wiring.serve_mpi) add_mpi_defaults(common, job.ranks_here(), machine);
  if (on_cpu(options) || machine.gpus == 0) add_malloc_defaults(common);

  LaunchPlan result{.serve_mpi = wiring.serve_mpi, .machines = job.machines()};
  const auto shares = assign_processors(machine.processors, job.ranks_here());
  for (int64_t local = 0; local < job.ranks_here(); ++local) {
    WorkerPlan worker{
        .rank = job.first_rank() + local, .local_rank = local, .command = options.command, .environment = common};
    if (options.enable_cpu_affinity.value_or(false)) worker.processors = shares[static_cast<size_t>(local)];
    const env::ProcessEnv place{.source = env::Source::torchrun,
                                .rank = worker.rank,
                                .world_size = job.world_size(),
                                .local_rank = local,
                                .local_world_size = job.ranks_here(),
                                .master_addr = wiring.address,
                                .master_port = wiring.port,
                                .restart_count = wiring.restart_count,
                                .job_id = wiring.job_id};
    for (const auto& [name, value] : env::torchrun_variables(place)) worker.environment[name] = value;
    result.workers.push_back(std::move(worker));
  }
  return result;
}

}  // namespace accelerate::launch

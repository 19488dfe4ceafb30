// SPDX-License-Identifier: Apache-2.0
#include "launch/runners/runner_table.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "accelerate/base/random_id.hpp"
#include "accelerate/env/parse.hpp"
#include "launch/plan/shell.hpp"
#include "launch/run/spawn.hpp"
#include "launch/run/supervise.hpp"
#include "launch/runners/local.hpp"
#include "launch/runners/mpirun.hpp"
#include "launch/runners/srun.hpp"
#include "launch/runners/ssh.hpp"
#include "launch/runners/task.hpp"

namespace accelerate::launch {
namespace {

namespace fs = std::filesystem;

std::vector<HostSlots> hosts_of(const LaunchOptions& options) {
  if (options.hosts) return parse_hosts(*options.hosts);
  if (options.hostfile) return read_hostfile(*options.hostfile);
  return options.mpirun_hostfile ? read_hostfile(*options.mpirun_hostfile) : std::vector<HostSlots>{};
}

/// Path of this launcher, or "" if another program starts the ranks (launch.hpp). Throws if `needed` and there is none.
std::string launcher_path(bool needed) {
  const fs::path self = fs::read_symlink("/proc/self/exe");
  if (self.filename() == "accelerate_launch") return self;
  if (!needed) return "";
  fail(ErrorKind::usage, "other machines would start accelerate_launch, but this program is {}", self.string());
}

/// Path of the per-rank wrapper; empty if no option needs a wrapper.
std::string wraps_ranks(const RunnerContext& call) { return launcher_path(needs_rank_wrapper(call.options)); }

LaunchPlan ssh_plan(const RunnerContext& call) {
  const auto to_connect = std::min(call.timeout, std::chrono::seconds(30));
  return plan_ssh(call.options, hosts_of(call.options), call.variables, base::random_id(), launcher_path(true),
                  to_connect);
}

LaunchPlan ssh_script(const RunnerContext& call) {
  return ssh_script_plan(call.options, hosts_of(call.options), call.variables, base::random_id(), launcher_path(true),
                         current_folder());
}

LaunchPlan mpirun_plan(const RunnerContext& call) {
  return plan_mpirun(call.options, hosts_of(call.options), call.variables, base::random_id(), wraps_ranks(call));
}

LaunchPlan srun_plan(const RunnerContext& call) {
  return plan_srun(call.options, call.variables, base::random_id(), wraps_ranks(call));
}

LaunchPlan task_plan(const RunnerContext& call) { return plan_task(call.options, call.variables); }

/// Each run of the script generates its own job id, which does not appear on a command line.
LaunchPlan with_id_of_script(LaunchPlan plan, const RunnerContext& call) {
  auto& variables = plan.workers.front().environment;
  const auto given = call.variables.find("ACCELERATE_JOB_ID");
  variables.erase("ACCELERATE_JOB_ID");
  if (given != call.variables.end())
    variables.insert(*given);  // even if empty, because the script would otherwise unset its own id
  plan.machines = 1;
  return plan;
}

void log_mpirun_choice(const RunnerContext& call) {
  const auto hosts = hosts_of(call.options);
  call.note(mpirun_choice_text(call.options, hosts));
  if (hosts.empty()) call.note(unused_address_text(call.options));
}

void log_srun_choice(const RunnerContext& call) {
  if (!call.options.num_processes) call.note(slurm_choice_text(tasks_of_job(call.variables)));
}

LaunchPlan mpirun_script_plan(const RunnerContext& call) {
  log_mpirun_choice(call);
  return with_id_of_script(mpirun_plan(call), call);
}

LaunchPlan srun_script_plan(const RunnerContext& call) {
  log_srun_choice(call);
  return with_id_of_script(srun_plan(call), call);
}

/// Plans one of several tasks, which must not generate different job ids.
LaunchPlan task_script_plan(const RunnerContext& call) {
  LaunchPlan plan = task_plan(call);
  plan.machines = 2;
  return plan;
}

/// mpirun's ranks on this machine share its resources in the same way as our own ranks.
void check_this_machine(const RunnerContext& call) {
  if (!hosts_of(call.options).empty()) return;
  LaunchOptions here = call.options;
  here.num_processes = here.num_processes.value_or(1);
  here.num_machines = 1;
  here.ranks_per_machine.reset();
  const Machine machine = machine_of_ranks(here, call.variables);
  check_gpus(here, machine);
  call.note(oversubscription_warning(here, machine));
}

template <LaunchPlan (*plan_by_hand)(const RunnerContext&)>
std::string script(const RunnerContext& call) {
  return as_script(plan_by_hand(call), call.variables, current_folder());
}

/// Supervises a program that starts the ranks.
template <LaunchPlan (*plan_call)(const RunnerContext&)>
int run_others(const RunnerContext& call) {
  SuperviseOptions patient = supervise_options(call.options);
  patient.grace += std::chrono::seconds(10);  // longer than the grace time of the supervised launchers
  patient.restarts = {.max_restarts = value_of(call.options, &LaunchOptions::max_restarts), .on_request = true};
  patient.hang = {};  // the per-rank wrappers detect hangs
  patient.output = {};
  const auto plan_again = [&](int64_t restart) {
    auto variables = call.variables;
    export_start(variables, {restart, patient.restarts.max_restarts});
    // mpirun always gives its ranks terminals, even if ours is not one.
    if (call.options.label.value_or(false) && isatty(STDOUT_FILENO) == 0) variables.try_emplace("NO_COLOR", "1");
    return plan_call({.options = call.options, .variables = variables, .timeout = call.timeout});
  };
  return supervise(plan_again, patient);
}

int run_mpirun(const RunnerContext& call) {
  log_mpirun_choice(call);
  check_this_machine(call);
  return run_others<mpirun_plan>(call);
}

int run_srun(const RunnerContext& call) {
  log_srun_choice(call);
  return run_others<srun_plan>(call);
}

int run_task_runner(const RunnerContext& call) { return run_task(task_plan(call).workers.front(), call.options); }

struct Row {
  Runner runner;
  const char* program;  ///< required program, or ""
  const char* package;  ///< Debian package
  std::string (*script)(const RunnerContext& call);
  int (*run)(const RunnerContext& call);
};

constexpr std::array<Row, 5> kRows{{{Runner::local, "", "", script_of_local, run_local},
                                    {Runner::ssh, "ssh", "openssh-client", script<ssh_script>, run_others<ssh_plan>},
                                    {Runner::mpirun, "mpirun", "openmpi-bin", script<mpirun_script_plan>, run_mpirun},
                                    {Runner::srun, "srun", "slurm-client", script<srun_script_plan>, run_srun},
                                    {Runner::task, "", "", script<task_script_plan>, run_task_runner}}};

const Row& row_of(Runner runner) {
  return *std::find_if(kRows.begin(), kRows.end(), [&](const Row& row) { return row.runner == runner; });
}

void need(const Row& row, const env::Variables& variables) {
  if (*row.program == '\0' || is_program(row.program, variables)) return;
  fail(ErrorKind::environment, "--runner {} needs {}, which is not in PATH (Debian package {})", row.program,
       row.program, row.package);
}

}  // namespace

std::string script_of(Runner runner, const RunnerContext& call) { return row_of(runner).script(call); }

int run_with(Runner runner, const RunnerContext& call) {
  const Row& row = row_of(runner);
  need(row, call.variables);
  return row.run(call);
}

}  // namespace accelerate::launch

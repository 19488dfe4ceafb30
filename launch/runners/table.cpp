// SPDX-License-Identifier: Apache-2.0
#include "launch/runners/table.hpp"

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
std::string this_launcher(bool needed) {
  const fs::path self = fs::read_symlink("/proc/self/exe");
  if (self.filename() == "accelerate_launch") return self;
  if (!needed) return "";
  fail(ErrorKind::usage, "other machines would start accelerate_launch, but this program is {}", self.string());
}

/// Path of the per-rank wrapper; empty if no option needs a wrapper.
std::string around_ranks(const Call& call) { return this_launcher(wants_watched_ranks(call.options)); }

LaunchPlan ssh_plan(const Call& call) {
  const auto to_connect = std::min(call.timeout, std::chrono::seconds(30));
  return plan_ssh(call.options, hosts_of(call.options), call.variables, base::random_id(), this_launcher(true),
                  to_connect);
}

LaunchPlan ssh_by_hand(const Call& call) {
  return plan_ssh_by_hand(call.options, hosts_of(call.options), call.variables, base::random_id(), this_launcher(true),
                          current_folder());
}

LaunchPlan mpirun_plan(const Call& call) {
  return plan_mpirun(call.options, hosts_of(call.options), call.variables, base::random_id(), around_ranks(call));
}

LaunchPlan srun_plan(const Call& call) {
  return plan_srun(call.options, call.variables, base::random_id(), around_ranks(call));
}

LaunchPlan task_plan(const Call& call) { return plan_task(call.options, call.variables); }

/// Each run of the script generates its own job id, which does not appear on a command line.
LaunchPlan with_id_of_script(LaunchPlan plan, const Call& call) {
  auto& variables = plan.workers.front().environment;
  const auto given = call.variables.find("ACCELERATE_JOB_ID");
  variables.erase("ACCELERATE_JOB_ID");
  if (given != call.variables.end())
    variables.insert(*given);  // even if empty, because the script would otherwise unset its own id
  plan.machines = 1;
  return plan;
}

void say_what_mpirun_starts(const Call& call) {
  const auto hosts = hosts_of(call.options);
  call.note(what_mpirun_chose(call.options, hosts));
  if (hosts.empty()) call.note(address_not_used(call.options));
}

void say_what_srun_starts(const Call& call) {
  if (!call.options.num_processes) call.note(what_slurm_chose(tasks_of_job(call.variables)));
}

LaunchPlan mpirun_by_hand(const Call& call) {
  say_what_mpirun_starts(call);
  return with_id_of_script(mpirun_plan(call), call);
}

LaunchPlan srun_by_hand(const Call& call) {
  say_what_srun_starts(call);
  return with_id_of_script(srun_plan(call), call);
}

/// Plans one of several tasks, which must not generate different job ids.
LaunchPlan task_by_hand(const Call& call) {
  LaunchPlan plan = task_plan(call);
  plan.machines = 2;
  return plan;
}

/// mpirun's ranks on this machine share its resources in the same way as our own ranks.
void check_this_machine(const Call& call) {
  if (!hosts_of(call.options).empty()) return;
  LaunchOptions here = call.options;
  here.num_processes = here.num_processes.value_or(1);
  here.num_machines = 1;
  here.ranks_per_machine.reset();
  const Machine machine = machine_of_ranks(here, call.variables);
  check_gpus(here, machine);
  call.note(too_many_for_the_processors(here, machine));
}

template <LaunchPlan (*plan_by_hand)(const Call&)>
std::string script(const Call& call) {
  return as_script(plan_by_hand(call), call.variables, current_folder());
}

/// Supervises a program that starts the ranks.
template <LaunchPlan (*plan_call)(const Call&)>
int run_others(const Call& call) {
  SuperviseOptions patient = supervise_options(call.options);
  patient.grace += std::chrono::seconds(10);  // longer than the grace time of the supervised launchers
  patient.restarts = {.max_restarts = value_of(call.options, &LaunchOptions::max_restarts), .when_asked = true};
  patient.hang = {};  // the per-rank wrappers detect hangs
  patient.output = {};
  const auto plan_again = [&](int64_t restart) {
    auto variables = call.variables;
    tell_start(variables, {restart, patient.restarts.max_restarts});
    // mpirun always gives its ranks terminals, even if ours is not one.
    if (call.options.label.value_or(false) && isatty(STDOUT_FILENO) == 0) variables.try_emplace("NO_COLOR", "1");
    return plan_call({.options = call.options, .variables = variables, .timeout = call.timeout});
  };
  return supervise(plan_again, patient);
}

int run_mpirun(const Call& call) {
  say_what_mpirun_starts(call);
  check_this_machine(call);
  return run_others<mpirun_plan>(call);
}

int run_srun(const Call& call) {
  say_what_srun_starts(call);
  return run_others<srun_plan>(call);
}

int run_as_task(const Call& call) { return run_task(task_plan(call).workers.front(), call.options); }

struct Row {
  Runner runner;
  const char* program;  ///< required program, or ""
  const char* package;  ///< Debian package
  std::string (*script)(const Call& call);
  int (*run)(const Call& call);
};

constexpr std::array<Row, 5> kRows{{{Runner::local, "", "", script_of_local, run_local},
                                    {Runner::ssh, "ssh", "openssh-client", script<ssh_by_hand>, run_others<ssh_plan>},
                                    {Runner::mpirun, "mpirun", "openmpi-bin", script<mpirun_by_hand>, run_mpirun},
                                    {Runner::srun, "srun", "slurm-client", script<srun_by_hand>, run_srun},
                                    {Runner::task, "", "", script<task_by_hand>, run_as_task}}};

const Row& row_of(Runner runner) {
  return *std::find_if(kRows.begin(), kRows.end(), [&](const Row& row) { return row.runner == runner; });
}

void need(const Row& row, const env::Variables& variables) {
  if (*row.program == '\0' || is_program(row.program, variables)) return;
  fail(ErrorKind::environment, "--runner {} needs {}, which is not in PATH (Debian package {})", row.program,
       row.program, row.package);
}

}  // namespace

std::string script_of(Runner runner, const Call& call) { return row_of(runner).script(call); }

int run(Runner runner, const Call& call) {
  const Row& row = row_of(runner);
  need(row, call.variables);
  return row.run(call);
}

}  // namespace accelerate::launch

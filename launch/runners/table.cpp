// SPDX-License-Identifier: Apache-2.0
#include "launch/runners/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "launch/run/job_id.hpp"
#include "launch/run/spawn.hpp"
#include "launch/runners/mpirun.hpp"
#include "launch/runners/srun.hpp"
#include "launch/runners/ssh.hpp"

namespace accelerate::launch {
namespace {

namespace fs = std::filesystem;

std::vector<HostSlots> hosts_of(const LaunchOptions& options) {
  if (options.hosts) return parse_hosts(*options.hosts);
  if (options.hostfile) return read_hostfile(*options.hostfile);
  return options.mpirun_hostfile ? read_hostfile(*options.mpirun_hostfile) : std::vector<HostSlots>{};
}

std::string this_program() {
  const fs::path self = fs::read_symlink("/proc/self/exe");
  if (self.filename() == "accelerate_launch") return self;
  fail(ErrorKind::usage, "--runner ssh starts accelerate_launch on the hosts, but this program is {}", self.string());
}

LaunchPlan ssh_plan(const Call& call) {
  const auto to_connect = std::min(call.timeout, std::chrono::seconds(30));
  return plan_ssh(call.options, hosts_of(call.options), call.variables, random_job_id(), this_program(), to_connect);
}

LaunchPlan ssh_script(const Call& call) {
  return plan_ssh_by_hand(call.options, hosts_of(call.options), call.variables, random_job_id(), this_program(),
                          fs::current_path().string());
}

LaunchPlan mpirun_plan(const Call& call) {
  return plan_mpirun(call.options, hosts_of(call.options), call.variables, random_job_id());
}

LaunchPlan srun_plan(const Call& call) { return plan_srun(call.options, call.variables); }
LaunchPlan task_plan(const Call& call) { return plan_task(call.options, call.variables); }

struct Row {
  Runner runner;
  const char* program;  ///< that it needs; "": none
  const char* package;  ///< Debian's
  LaunchPlan (*plan)(const Call& call);
  LaunchPlan (*script)(const Call& call);
};

constexpr std::array<Row, 4> kRows{{{Runner::ssh, "ssh", "openssh-client", ssh_plan, ssh_script},
                                    {Runner::mpirun, "mpirun", "openmpi-bin", mpirun_plan, mpirun_plan},
                                    {Runner::srun, "srun", "slurm-client", srun_plan, srun_plan},
                                    {Runner::task, "", "", task_plan, task_plan}}};

const Row* row_of(Runner runner) {
  const auto* found = std::find_if(kRows.begin(), kRows.end(), [&](const Row& row) { return row.runner == runner; });
  return found == kRows.end() ? nullptr : found;
}

void need(const Row& row, const env::Variables& variables) {
  if (*row.program == '\0') return;
  try {
    (void)find_program(row.program, variables);
  } catch (const LaunchError&) {
    fail(ErrorKind::environment, "--runner {} needs {}, which is not in PATH (Debian package {})", row.program,
         row.program, row.package);
  }
}

}  // namespace

std::optional<LaunchPlan> plan_of(Runner runner, const Call& call) {
  const Row* row = row_of(runner);
  return row == nullptr ? std::nullopt : std::optional(row->script(call));
}

int run(Runner runner, const Call& call) {
  const Row& row = *row_of(runner);
  need(row, call.variables);
  if (runner == Runner::task) become(row.plan(call).workers.front());
  SuperviseOptions patient = call.supervise_options;
  patient.grace += std::chrono::seconds(10);  // what runs there has the grace itself
  patient.restarts.max_restarts = call.options.max_restarts.value_or(0);
  const auto plan_again = [&](int64_t restart) {
    LaunchPlan plan = row.plan(call);
    for (auto& worker : plan.workers) worker.environment["ACCELERATE_RESTART_COUNT"] = fmt::to_string(restart);
    return plan;
  };
  return supervise(plan_again, patient);
}

}  // namespace accelerate::launch

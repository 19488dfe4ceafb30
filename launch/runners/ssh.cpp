// SPDX-License-Identifier: Apache-2.0
#include "launch/runners/ssh.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "launch/plan/shell.hpp"
#include "launch/run/port.hpp"
#include "launch/runners/forwarded_environment.hpp"
#include "launch/runners/relay.hpp"

namespace accelerate::launch {
namespace {

/// Arguments of the shell script: host, the words before the variables, the words after them, the variables' names.
/// Each value is quoted for the remote shell by the local shell, so that no value appears in a script.
constexpr std::string_view kByHostname =
    R"sh(# Your own variables are taken by name, with the values that they have where this runs.
_host=$1 _words=$2 _rest=$3
shift 3
for _name; do
  eval "[ -n \"\${$_name+set}\" ]" || continue
  eval "_value=\$$_name"
  _words="$_words $_name=$(printf "%s\n" "$_value" | LC_ALL=C sed "s/'/'\\\\''/g; 1s/^/'/; \$s/\$/'/")"
done
exec ssh -T -- "$_host" "$_words $_rest")sh";

std::string without_user(const std::string& host) { return host.substr(host.find('@') + 1); }

std::vector<std::string> launcher_arguments(const LaunchOptions& options) {
  auto words = arguments_of(options);
  words.emplace_back("--");
  words.insert(words.end(), options.command.begin(), options.command.end());
  return words;
}

/// Checks that machine 0's name does not mean the local host on the other hosts.
void check_others_reach(const std::string& first, const std::vector<HostSlots>& hosts) {
  for (const auto& host : hosts) {
    if (!is_loopback_name(first) || is_loopback_name(without_user(host.name))) continue;
    fail(ErrorKind::usage,
         "the rendezvous would be at the first host, {}, which on {} is {} itself; use the first host's network name "
         "or --main_process_ip",
         first, host.name, host.name);
  }
}

void check_no_slots(const std::string& ranks, const std::vector<HostSlots>& hosts) {
  for (const auto& host : hosts) {
    if (host.slots == 0) continue;
    fail(ErrorKind::usage, "ranks_per_machine is {}, and {} has {} slots; use only one of them", ranks, host.name,
         host.slots);
  }
}

}  // namespace

std::vector<LaunchOptions> options_of_hosts(const LaunchOptions& options, std::vector<HostSlots>& hosts,
                                            const std::string& job_id) {
  if (options.ranks_per_machine) check_no_slots(*options.ranks_per_machine, hosts);
  const auto ranks =
      options.ranks_per_machine ? std::vector<int64_t>{} : fill_hosts(hosts, options.num_processes.value_or(0));
  LaunchOptions common = options;
  common.runner = "local";
  common.max_restarts = std::nullopt;  // only the launcher that started all machines restarts them
  common.hosts = common.hostfile = common.mpirun_hostfile = common.config_file = std::nullopt;
  common.num_processes = common.ranks_per_machine ? options.num_processes : std::nullopt;
  if (!ranks.empty()) common.ranks_per_machine = fmt::format("{}", fmt::join(ranks, ","));
  common.num_machines = static_cast<int64_t>(hosts.size());
  if (!common.main_process_ip && hosts.size() > 1) {
    common.main_process_ip = without_user(hosts.front().name);
    check_others_reach(*common.main_process_ip, hosts);
  }
  if (common.main_process_port.value_or(0) == 0) common.main_process_port = port_of_job(job_id);
  std::vector<LaunchOptions> all(hosts.size(), common);
  for (size_t machine = 0; machine < all.size(); ++machine) all[machine].machine_rank = static_cast<int64_t>(machine);
  return all;
}

LaunchPlan plan_ssh(const LaunchOptions& options, std::vector<HostSlots> hosts, const env::Variables& inherited,
                    const std::string& job_id, const std::string& self, std::chrono::seconds to_connect) {
  LaunchPlan plan{.runner = Runner::ssh};
  env::Variables environment = inherited;
  environment["ACCELERATE_JOB_ID"] = job_id;
  const auto termination_signal = options_of_hosts(options, hosts, job_id);
  for (size_t machine = 0; machine < hosts.size(); ++machine) {
    WorkerPlan worker{.rank = static_cast<int64_t>(machine),
                      .host = hosts[machine].name,
                      .command = {self, kRelayFlag, hosts[machine].name, fmt::to_string(to_connect.count())},
                      .environment = environment};
    const auto words = launcher_arguments(termination_signal[machine]);
    worker.command.insert(worker.command.end(), words.begin(), words.end());
    plan.workers.push_back(std::move(worker));
  }
  return plan;
}

LaunchPlan ssh_script_plan(const LaunchOptions& options, std::vector<HostSlots> hosts, const env::Variables& inherited,
                           const std::string& job_id, const std::string& self, const std::string& folder) {
  LaunchPlan plan{.runner = Runner::ssh};
  const auto termination_signal = options_of_hosts(options, hosts, job_id);
  plan.machines = 2;  // the launchers determine the job id during rendezvous
  for (size_t machine = 0; machine < hosts.size(); ++machine) {
    auto remote = launcher_arguments(termination_signal[machine]);
    remote.insert(remote.begin(), self);
    WorkerPlan ssh{.rank = static_cast<int64_t>(machine),
                   .host = hosts[machine].name,
                   .command = {"sh", "-c", std::string(kByHostname), "ssh", hosts[machine].name,
                               fmt::format("cd {} && exec env", for_shell(folder)), for_shell(remote)},
                   .environment = inherited};
    // variable names that a shell accepts
    for (const auto& [name, value] : forwarded_variables(inherited)) ssh.command.push_back(name);
    plan.workers.push_back(std::move(ssh));
  }
  return plan;
}

}  // namespace accelerate::launch

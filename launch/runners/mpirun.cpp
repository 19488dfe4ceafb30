// SPDX-License-Identifier: Apache-2.0
#include "launch/runners/mpirun.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "accelerate/env/parse.hpp"
#include "launch/plan/plan.hpp"
#include "launch/run/port.hpp"
#include "launch/runners/forwarded_environment.hpp"
#include "launch/runners/task.hpp"

namespace accelerate::launch {
namespace {

std::string host_of(const std::string& name) { return name.substr(name.find('@') + 1); }

/// Returns the hosts with their ranks, "gpu-a:4,gpu-b:4".
std::string list_of(std::vector<HostSlots> hosts, int64_t processes, int64_t& total) {
  auto ranks = fill_hosts(hosts, processes);
  if (ranks.empty()) ranks.assign(hosts.size(), 1);
  std::string list;
  total = 0;
  for (size_t i = 0; i < hosts.size(); ++i) {
    list += fmt::format("{}{}:{}", list.empty() ? "" : ",", host_of(hosts[i].name), ranks[i]);
    total += ranks[i];
  }
  return list;
}

void check_for_mpirun(const LaunchOptions& options, const std::vector<HostSlots>& hosts) {
  for (const auto& host : hosts) {
    if (host.name.find(':') == std::string::npos) continue;
    fail(ErrorKind::usage, "{} is an IPv6 address, which mpirun accepts only by name; use the host's name", host.name);
  }
  const auto backend = named_backend(options);
  if (backend && *backend != "mpi" && hosts.empty()) {
    fail(ErrorKind::usage,
         "--runner mpirun without hosts is for --backend mpi, not {}; give --hosts, or --runner local", *backend);
  }
}

/// Removes the variables of an outer mpirun, because they would be passed on.
void drop_outer_mpi(env::Variables& variables) {
  if (!variables.contains("OMPI_COMM_WORLD_SIZE")) return;
  std::erase_if(variables, [](const auto& variable) { return is_foreign_launcher_variable(variable.first, true); });
}

/// Removes the address of another launcher's job, because it refers to the store of that job.
void drop_outer_address(env::Variables& variables) {
  if (!variables.contains("RANK") || !variables.contains("WORLD_SIZE")) return;
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) variables.erase(name);
}

/// The ranks of this host inherit mpirun's environment. Removes torchrun variables, which would apply to every rank,
/// and values that an option overrides, which would differ from those of other hosts.
void drop_local_rank_variables(env::Variables& variables, const LaunchOptions& options) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
                           "ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE"}) {
    variables.erase(name);
  }
  std::erase_if(variables, [](const auto& variable) { return variable.first.starts_with("TORCHELASTIC_"); });
  set_for_ranks(variables, options);
}

/// By default mpirun and its daemons probe idle connections only after 300 s, and give up 180 s later. These settings
/// match the launcher's own connections: a lost host is detected after 25 s.
void notice_lost_hosts(env::Variables& variables) {
  variables.try_emplace("OMPI_MCA_oob_tcp_keepalive_time", "10");
  variables.try_emplace("OMPI_MCA_oob_tcp_keepalive_intvl", "5");
  variables.try_emplace("OMPI_MCA_oob_tcp_keepalive_probes", "3");
}

}  // namespace

std::optional<std::string> mpirun_choice_text(const LaunchOptions& options, std::vector<HostSlots> hosts) {
  if (options.num_processes) return std::nullopt;
  if (hosts.empty()) return "1 rank; --num_processes N starts more";
  if (!fill_hosts(hosts, 0).empty()) return std::nullopt;
  return fmt::format("{} rank{}, one per host; the hosts' slots (gpu-a:4) or --num_processes N choose otherwise",
                     hosts.size(), hosts.size() == 1 ? "" : "s");
}

LaunchPlan plan_mpirun(const LaunchOptions& options, std::vector<HostSlots> hosts, const env::Variables& inherited,
                       const std::string& job_id, const std::string& self) {
  check_for_mpirun(options, hosts);
  int64_t total = options.num_processes.value_or(1);
  const std::string list = hosts.empty() ? "" : list_of(hosts, options.num_processes.value_or(0), total);
  WorkerPlan mpirun{.command = {"mpirun", "-n", fmt::to_string(total)}, .environment = inherited};
  auto& words = mpirun.command;
  check_multi_gpu(options, total);
  // the per-rank wrapper (task.hpp) binds the rank
  if (options.enable_cpu_affinity.value_or(false)) words.insert(words.end(), {"--bind-to", "none"});
  if (list.empty()) {
    words.emplace_back("--oversubscribe");  // allows more ranks than cores; a warning is logged
  } else {
    words.insert(words.end(), {"-H", list});
  }

  drop_outer_mpi(mpirun.environment);
  drop_outer_address(mpirun.environment);
  env::Variables of_ranks = forwarded_variables(mpirun.environment);
  const auto start = import_start(of_ranks);
  set_for_ranks(of_ranks, options);
  drop_local_rank_variables(mpirun.environment, options);
  if (start) set_start_for_ranks(of_ranks, *start);
  of_ranks["ACCELERATE_JOB_ID"] = job_id;
  if (!self.empty()) of_ranks[kLauncherVersionVariable] = ACCELERATE_VERSION;
  if (!hosts.empty()) {
    of_ranks["MASTER_ADDR"] = options.main_process_ip.value_or(host_of(hosts.front().name));
    const auto port = options.main_process_port.value_or(0);
    of_ranks["MASTER_PORT"] = fmt::to_string(port != 0 ? port : port_of_job(job_id));
  }
  for (const auto& [name, value] : of_ranks) {
    mpirun.environment[name] = value;
    words.insert(words.end(), {"-x", name});  // by name, so that the value is not on the command line
  }
  mpirun.environment.try_emplace("OMPI_MCA_pml", "ob1");  // mpirun forwards its own parameters
  if (!hosts.empty()) notice_lost_hosts(mpirun.environment);
  const auto rank = rank_wrapper_arguments(options, self);
  words.insert(words.end(), rank.begin(), rank.end());
  return {.runner = Runner::mpirun,
          .workers = {mpirun},
          .machines = std::max<int64_t>(1, static_cast<int64_t>(hosts.size()))};
}

}  // namespace accelerate::launch

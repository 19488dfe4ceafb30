// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/process_env.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/env/launcher_variables.hpp"
#include "accelerate/env/parse.hpp"
#include "accelerate/env/slurm.hpp"

namespace accelerate::env {
namespace {

void check_inside(const Field& what, int64_t value, const Field& of, int64_t size) {
  if (size < 1) {
    base::fail(ErrorKind::environment, {}, "environment", "{} is {}, must be at least 1", of.name, size);
  }
  if (value < 0 || value >= size) {
    base::fail(ErrorKind::environment, {}, "environment", "{} is {}, must be at least 0 and below {}, which is {}",
               what.name, value, of.name, size);
  }
}

/// The ranks of one machine have consecutive local ranks from 0, which bounds the rank and the world size.
void check_agree(const LauncherVariables& set, const ProcessEnv& process) {
  const int64_t behind = process.world_size - 1 - process.rank;
  const int64_t behind_here = process.local_world_size - 1 - process.local_rank;
  if (process.local_rank <= process.rank && behind_here <= behind) return;
  base::fail(ErrorKind::environment, {}, "environment",
             "{}={}, {}={}, {}={} and {}={} contradict one another: no such process exists. Correct them, or unset all "
             "to run as one process",
             set.fields[0].name, process.rank, set.fields[1].name, process.world_size, set.fields[2].name,
             process.local_rank, set.fields[3].name, process.local_world_size);
}

/// \param set  A complete set.
ProcessEnv numbers(const LauncherVariables& set) {
  ProcessEnv process{.source = set.source, .rank = number(set.fields[0]), .world_size = number(set.fields[1])};
  if (set.fields[2].text) {
    process.local_rank = number(set.fields[2]);
    process.local_world_size = number(set.fields[3]);
  }
  check_inside(set.fields[0], process.rank, set.fields[1], process.world_size);
  check_inside(set.fields[2], process.local_rank, set.fields[3], process.local_world_size);
  check_agree(set, process);
  return process;
}

std::optional<int64_t> read_port(const Variables& variables) {
  const Field from = field(variables, "MASTER_PORT");
  if (!from.text) return std::nullopt;
  const auto value = parse_integer(*from.text);
  if (!value || *value < 0 || *value > 65535) throw_malformed_variable(from, "a port, 0 to 65535");
  return value;
}

void read_elastic(const Variables& variables, ProcessEnv& process) {
  const Field restarts = field(variables, "TORCHELASTIC_RESTART_COUNT");
  if (restarts.text) {
    process.restart_count = number(restarts);
    if (process.restart_count < 0) throw_malformed_variable(restarts, "at least 0");
  }
  const Field agent = field(variables, "TORCHELASTIC_USE_AGENT_STORE");
  if (!agent.text) return;
  const auto value = parse_bool(*agent.text);
  if (!value) throw_malformed_variable(agent, "True or False");
  process.agent_store = *value;
  if (process.agent_store && (!process.master_addr || !process.master_port)) {
    base::fail(ErrorKind::environment, {}, "environment",
               "{} is {}, but {} is not set, so the address of the agent's store is incomplete", agent.name,
               *agent.text, process.master_addr ? "MASTER_PORT" : "MASTER_ADDR");
  }
}

/// Determines the address of rank 0 of a Slurm step. MASTER_ADDR and MASTER_PORT take precedence if they are set.
void read_slurm_master(const Variables& variables, ProcessEnv& process) {
  const Field nodes = first_set(variables, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  if (!process.master_addr && nodes.text) {
    process.master_addr = slurm::first_host(*nodes.text);
    if (!process.master_addr) throw_malformed_variable(nodes, "a list of hosts, like node[01-04,7]");
  }
  const Field job = first_set(variables, {"SLURM_JOB_ID", "SLURM_JOBID"});
  if (!process.master_port && job.text) {
    process.master_port = slurm::port(number(job), number(field(variables, "SLURM_STEP_ID")));
  }
}

/// A step of a launcher that did not place this process does not identify its job.
std::string read_job_id(const Variables& variables, Source source) {
  if (auto own = find(variables, "ACCELERATE_JOB_ID")) return *own;
  switch (source) {
    case Source::torchrun:
      return find(variables, "TORCHELASTIC_RUN_ID").value_or("");
    case Source::slurm:
      return fmt::format("{}.{}", first_set(variables, {"SLURM_JOB_ID", "SLURM_JOBID"}).text.value_or(""),
                         find(variables, "SLURM_STEP_ID").value_or(""));
    case Source::open_mpi:
    case Source::pmix:
      return find(variables, "PMIX_NAMESPACE").value_or("");
    default:
      return "";
  }
}

std::string describe_process(const ProcessEnv& process) {
  return fmt::format("rank {} of {}, {} of {} here", process.rank, process.world_size, process.local_rank,
                     process.local_world_size);
}

std::string describe_launcher(const LauncherVariables& set) {
  try {
    return describe_process(numbers(set));
  } catch (const Error& error) {
    return error.what();
  }
}

/// True if all values of the partial set match the chosen set.
bool agrees(const LauncherVariables& half, const ProcessEnv& chosen) {
  const std::array values{chosen.rank, chosen.world_size, chosen.local_rank, chosen.local_world_size};
  for (size_t i = 0; i < values.size(); ++i) {
    if (half.fields[i].text && parse_integer(*half.fields[i].text) != values[i]) return false;
  }
  return true;
}

/// True for partial sets that are normal: PMIx has no size, and MPICH under srun has no local ranks.
bool is_always_incomplete(const LauncherVariables& set) {
  if (set.source == Source::pmix) return !set.fields[1].text && !set.fields[2].text && !set.fields[3].text;
  return set.source == Source::pmi && !set.fields[2].text && !set.fields[3].text;
}

/// RANK and WORLD_SIZE that a user has set must not be ignored, so a partial torchrun set with other values is an
/// error.
void check_half(const LauncherVariables& half, const ProcessEnv& chosen) {
  if (is_always_incomplete(half) || agrees(half, chosen)) return;
  const Field& rank = half.fields[0];
  const Field& size = half.fields[1];
  const bool same_numbers = rank.text && size.text && parse_integer(*rank.text) == chosen.rank &&
                            parse_integer(*size.text) == chosen.world_size;
  if (half.source == Source::torchrun && rank.text && size.text && !same_numbers) throw_incomplete_variables(half);
  base::log_once(
      base::LogLevel::debug, {}, "environment: using {} with {}; {} is an incomplete set of {} and is ignored",
      launcher_name(chosen.source), describe_process(chosen), describe_variables(half), launcher_name(half.source));
}

void check_other_launchers(const std::vector<LauncherVariables>& sets, const ProcessEnv& chosen) {
  for (const LauncherVariables& other : sets) {
    if (other.source == chosen.source || !has_any(other)) continue;
    if (!is_complete(other)) {
      check_half(other, chosen);
      continue;
    }
    const std::string description = describe_launcher(other);
    if (description == describe_process(chosen)) continue;
    base::log_once(base::LogLevel::debug, {}, "environment: using {} with {}; {} has {} and is ignored",
                   launcher_name(chosen.source), describe_process(chosen), launcher_name(other.source), description);
  }
}

}  // namespace

Variables current_variables() {
  Variables all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string_view::npos) all.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return all;
}

std::string_view launcher_name(Source source) {
  switch (source) {
    case Source::single:
      return "single";
    case Source::torchrun:
      return "torchrun";
    case Source::open_mpi:
      return "Open MPI";
    case Source::pmi:
      return "PMI";
    case Source::mvapich:
      return "MVAPICH";
    case Source::pmix:
      return "PMIx";
    case Source::slurm:
      return "Slurm";
  }
  return "unknown";
}

ProcessEnv read_process_env(const Variables& variables) {
  const std::vector<LauncherVariables> sets = launcher_variables_in_order(variables);
  const auto complete = std::find_if(sets.begin(), sets.end(), is_complete);
  if (complete == sets.end()) {
    const auto half = std::find_if(sets.begin(), sets.end(), has_any);
    if (half != sets.end()) throw_incomplete_variables(*half);
    return {};
  }
  ProcessEnv process = numbers(*complete);
  process.master_addr = find(variables, "MASTER_ADDR");
  process.master_port = read_port(variables);
  if (process.source == Source::torchrun) read_elastic(variables, process);
  if (process.source == Source::slurm) read_slurm_master(variables, process);
  process.job_id = read_job_id(variables, process.source);
  check_other_launchers(sets, process);
  return process;
}

Variables torchrun_variables(const ProcessEnv& process) {
  Variables out{{"RANK", fmt::to_string(process.rank)},
                {"WORLD_SIZE", fmt::to_string(process.world_size)},
                {"LOCAL_RANK", fmt::to_string(process.local_rank)},
                {"LOCAL_WORLD_SIZE", fmt::to_string(process.local_world_size)},
                {"TORCHELASTIC_RESTART_COUNT", fmt::to_string(process.restart_count)},
                {"TORCHELASTIC_USE_AGENT_STORE", process.agent_store ? "True" : "False"}};
  if (process.master_addr) out["MASTER_ADDR"] = *process.master_addr;
  if (process.master_port) out["MASTER_PORT"] = fmt::to_string(*process.master_port);
  if (!process.job_id.empty()) out["ACCELERATE_JOB_ID"] = process.job_id;
  return out;
}

}  // namespace accelerate::env

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/process_env.hpp"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/env/parse.hpp"
#include "accelerate/env/slurm.hpp"

namespace accelerate::env {
namespace {

/// One of the four numbers of a set, under the name its launcher gives it.
struct Field {
  std::string name;
  std::optional<std::string> text;
};

struct Set {
  Source source;
  std::vector<Field> fields;  ///< rank, world size, local rank, local world size
};

Field field(const Variables& variables, const std::string& name) { return {name, find(variables, name)}; }

Set plain_set(const Variables& variables, Source source, const std::vector<std::string>& names) {
  Set set{source, {}};
  for (const std::string& name : names) set.fields.push_back(field(variables, name));
  return set;
}

[[noreturn]] void refuse_text(const Field& wrong, std::string_view expected) {
  base::fail(ErrorKind::environment, {}, "environment", "{} is '{}', must be {}", wrong.name, *wrong.text, expected);
}

int64_t number(const Field& from) {
  const auto value = parse_integer(*from.text);
  if (!value) refuse_text(from, "an integer");
  return *value;
}

Field first_set(const Variables& variables, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (find(variables, name)) return field(variables, name);
  }
  return {names.front(), std::nullopt};
}

/// The processes of this step on this node, as plain number.
Field slurm_local_size(const Variables& variables) {
  Field found = first_set(variables, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"});
  if (!found.text) return found;
  const Field node = field(variables, "SLURM_NODEID");
  const auto tasks = slurm::tasks_of_node(*found.text, node.text ? number(node) : 0);
  if (!tasks) refuse_text(found, "a count for every node, like 2(x3),1");
  found.text = fmt::to_string(*tasks);
  return found;
}

Set slurm_set(const Variables& variables) {
  Set set{Source::slurm, {}};
  if (!slurm::in_step(variables)) return set;
  // In a step its own count is right; SLURM_NTASKS may still be the job's.
  set.fields = {field(variables, "SLURM_PROCID"), first_set(variables, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}),
                field(variables, "SLURM_LOCALID"), slurm_local_size(variables)};
  return set;
}

std::vector<Set> sets_in_order(const Variables& variables) {
  return {
      plain_set(variables, Source::torchrun, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}),
      plain_set(
          variables, Source::open_mpi,
          {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}),
      plain_set(variables, Source::pmi, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}),
      plain_set(
          variables, Source::mvapich,
          {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"}),
      // PMIx itself says only the rank; IBM's jsrun adds the rest.
      plain_set(variables, Source::pmix,
                {"PMIX_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"}),
      slurm_set(variables),
  };
}

bool has_trace(const Set& set) {
  return std::any_of(set.fields.begin(), set.fields.end(), [](const Field& one) { return one.text.has_value(); });
}

bool is_complete(const Set& set) {
  if (set.fields.empty() || !set.fields[0].text || !set.fields[1].text) return false;
  if (set.fields[2].text && set.fields[3].text) return true;
  return !set.fields[2].text && !set.fields[3].text && *set.fields[1].text == "1";  // one process is on one machine
}

std::string join(const std::vector<std::string>& words) {
  std::string text = words.front();
  for (size_t i = 1; i < words.size(); ++i) text += (i + 1 == words.size() ? " and " : ", ") + words[i];
  return text;
}

[[noreturn]] void refuse_half(const Set& set) {
  std::vector<std::string> given, missing;
  for (const Field& one : set.fields) {
    if (one.text) {
      given.push_back(one.name + "=" + *one.text);
    } else {
      missing.push_back(one.name);
    }
  }
  if (set.source == Source::pmix) {
    base::fail(ErrorKind::environment, {}, "environment",
               "{} is set, but PMIx has no variable for the number of processes; start with mpirun, srun, torchrun or "
               "accelerate_launch, or set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE",
               join(given));
  }
  base::fail(ErrorKind::environment, {}, "environment",
             "{} from {} without {}; set what is missing, or unset all of them to run as one process", join(given),
             name(set.source), join(missing));
}

void check_inside(const Field& what, int64_t value, const Field& of, int64_t size) {
  if (size < 1) {
    base::fail(ErrorKind::environment, {}, "environment", "{} is {}, must be at least 1", of.name, size);
  }
  if (value < 0 || value >= size) {
    base::fail(ErrorKind::environment, {}, "environment", "{} is {}, must be at least 0 and below {}, which is {}",
               what.name, value, of.name, size);
  }
}

/// The ranks of one machine in order have local ranks 0, 1, ...: so many must come before and behind this one.
void check_agree(const Set& set, const ProcessEnv& process) {
  const int64_t behind = process.world_size - 1 - process.rank;
  const int64_t behind_here = process.local_world_size - 1 - process.local_rank;
  if (process.local_rank <= process.rank && behind_here <= behind) return;
  base::fail(ErrorKind::environment, {}, "environment",
             "{}={}, {}={}, {}={} and {}={} contradict one another: no such process exists. Correct them, or unset all "
             "to run as one process",
             set.fields[0].name, process.rank, set.fields[1].name, process.world_size, set.fields[2].name,
             process.local_rank, set.fields[3].name, process.local_world_size);
}

/// set   complete
ProcessEnv numbers(const Set& set) {
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
  if (!value || *value < 0 || *value > 65535) refuse_text(from, "a port, 0 to 65535");
  return *value;
}

void read_elastic(const Variables& variables, ProcessEnv& process) {
  const Field restarts = field(variables, "TORCHELASTIC_RESTART_COUNT");
  if (restarts.text) {
    process.restart_count = number(restarts);
    if (process.restart_count < 0) refuse_text(restarts, "at least 0");
  }
  const Field agent = field(variables, "TORCHELASTIC_USE_AGENT_STORE");
  if (!agent.text) return;
  const auto value = parse_bool(*agent.text);
  if (!value) refuse_text(agent, "True or False");
  process.agent_store = *value;
  if (process.agent_store && (!process.master_addr || !process.master_port)) {
    base::fail(ErrorKind::environment, {}, "environment", "{} is {}, but {} is not set; the store is there", agent.name,
               *agent.text, process.master_addr ? "MASTER_PORT" : "MASTER_ADDR");
  }
}

/// Where rank 0 of a Slurm step is; MASTER_ADDR and MASTER_PORT, when the user gives them, win.
void read_slurm_master(const Variables& variables, ProcessEnv& process) {
  const Field nodes = first_set(variables, {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  if (!process.master_addr && nodes.text) {
    process.master_addr = slurm::first_host(*nodes.text);
    if (!process.master_addr) refuse_text(nodes, "a list of hosts, like node[01-04,7]");
  }
  const Field job = first_set(variables, {"SLURM_JOB_ID", "SLURM_JOBID"});
  if (!process.master_port && job.text) {
    process.master_port = slurm::port(number(job), number(field(variables, "SLURM_STEP_ID")));
  }
}

std::string describe(const ProcessEnv& process) {
  return fmt::format("rank {} of {}, {} of {} here", process.rank, process.world_size, process.local_rank,
                     process.local_world_size);
}

std::string describe(const Set& set) {
  try {
    return describe(numbers(set));
  } catch (const Error& error) {
    return error.what();
  }
}

void log_others(const std::vector<Set>& sets, const ProcessEnv& chosen) {
  for (const Set& other : sets) {
    if (other.source == chosen.source || !is_complete(other)) continue;
    const std::string says = describe(other);
    if (says == describe(chosen)) continue;
    base::log(base::LogLevel::debug, {}, "environment: {} says {}; {} says {} and is not used", name(chosen.source),
              describe(chosen), name(other.source), says);
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

std::string_view name(Source source) {
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

ProcessEnv read(const Variables& variables) {
  const std::vector<Set> sets = sets_in_order(variables);
  const auto complete = std::find_if(sets.begin(), sets.end(), is_complete);
  if (complete == sets.end()) {
    const auto half = std::find_if(sets.begin(), sets.end(), has_trace);
    if (half != sets.end()) refuse_half(*half);
    return {};
  }
  ProcessEnv process = numbers(*complete);
  process.master_addr = find(variables, "MASTER_ADDR");
  process.master_port = read_port(variables);
  if (process.source == Source::torchrun) read_elastic(variables, process);
  if (process.source == Source::slurm) read_slurm_master(variables, process);
  log_others(sets, process);
  return process;
}

Variables write(const ProcessEnv& process) {
  Variables out{{"RANK", fmt::to_string(process.rank)},
                {"WORLD_SIZE", fmt::to_string(process.world_size)},
                {"LOCAL_RANK", fmt::to_string(process.local_rank)},
                {"LOCAL_WORLD_SIZE", fmt::to_string(process.local_world_size)},
                {"TORCHELASTIC_RESTART_COUNT", fmt::to_string(process.restart_count)},
                {"TORCHELASTIC_USE_AGENT_STORE", process.agent_store ? "True" : "False"}};
  if (process.master_addr) out["MASTER_ADDR"] = *process.master_addr;
  if (process.master_port) out["MASTER_PORT"] = fmt::to_string(*process.master_port);
  return out;
}

}  // namespace accelerate::env

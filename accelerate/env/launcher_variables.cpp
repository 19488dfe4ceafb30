// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/launcher_variables.hpp"

#include <algorithm>

#include "accelerate/base/error.hpp"
#include "accelerate/env/parse.hpp"
#include "accelerate/env/slurm.hpp"

namespace accelerate::env {
namespace {

LauncherVariables plain_set(const Variables& variables, Source source, const std::vector<std::string>& names) {
  LauncherVariables set{source, {}};
  for (const std::string& name : names) set.fields.push_back(field(variables, name));
  return set;
}

/// Returns the number of processes of this step on this node.
Field slurm_local_size(const Variables& variables) {
  Field found = first_set(variables, {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"});
  if (!found.text) return found;
  const Field node = field(variables, "SLURM_NODEID");
  const auto tasks = slurm::tasks_of_node(*found.text, node.text ? number(node) : 0);
  if (!tasks) throw_malformed_variable(found, "a count for every node, like 2(x3),1");
  found.text = fmt::to_string(*tasks);
  return found;
}

LauncherVariables slurm_set(const Variables& variables) {
  LauncherVariables set{Source::slurm, {}};
  if (!slurm::in_step(variables)) return set;
  // Inside a step the step's count is correct; SLURM_NTASKS may still be that of the job.
  set.fields = {field(variables, "SLURM_PROCID"), first_set(variables, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}),
                field(variables, "SLURM_LOCALID"), slurm_local_size(variables)};
  return set;
}

std::string join(const std::vector<std::string>& words) {
  std::string text = words.front();
  for (size_t i = 1; i < words.size(); ++i) text += (i + 1 == words.size() ? " and " : ", ") + words[i];
  return text;
}

/// Returns the variables that are set, as "RANK=3".
std::vector<std::string> given(const LauncherVariables& set) {
  std::vector<std::string> list;
  for (const Field& one : set.fields) {
    if (one.text) list.push_back(one.name + "=" + *one.text);
  }
  return list;
}

std::vector<std::string> missing(const LauncherVariables& set) {
  std::vector<std::string> list;
  for (const Field& one : set.fields) {
    if (!one.text) list.push_back(one.name);
  }
  return list;
}

}  // namespace

Field field(const Variables& variables, const std::string& name) { return {name, find(variables, name)}; }

Field first_set(const Variables& variables, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (find(variables, name)) return field(variables, name);
  }
  return {names.front(), std::nullopt};
}

void throw_malformed_variable(const Field& wrong, std::string_view expected) {
  base::fail(ErrorKind::environment, {}, "environment", "{} is '{}', must be {}", wrong.name, *wrong.text, expected);
}

int64_t number(const Field& from) {
  const auto value = parse_integer(*from.text);
  if (!value) throw_malformed_variable(from, "an integer");
  return *value;
}

std::vector<LauncherVariables> launcher_variables_in_order(const Variables& variables) {
  return {
      plain_set(variables, Source::torchrun, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}),
      plain_set(
          variables, Source::open_mpi,
          {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}),
      plain_set(variables, Source::pmi, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}),
      // PMIx itself provides only the rank; IBM's jsrun adds the other values.
      plain_set(variables, Source::pmix,
                {"PMIX_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"}),
      plain_set(
          variables, Source::mvapich,
          {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"}),
      slurm_set(variables),
  };
}

bool has_any(const LauncherVariables& set) {
  return std::any_of(set.fields.begin(), set.fields.end(), [](const Field& one) { return one.text.has_value(); });
}

bool is_complete(const LauncherVariables& set) {
  if (set.fields.empty() || !set.fields[0].text || !set.fields[1].text) return false;
  if (set.fields[2].text && set.fields[3].text) return true;
  return !set.fields[2].text && !set.fields[3].text && *set.fields[1].text == "1";  // one process is on one machine
}

std::string describe_variables(const LauncherVariables& set) { return join(given(set)); }

void throw_incomplete_variables(const LauncherVariables& set) {
  if (set.source == Source::pmix) {
    base::fail(ErrorKind::environment, {}, "environment",
               "{} is set, but PMIx has no variable for the number of processes; start with mpirun, srun, torchrun or "
               "accelerate_launch, or set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE",
               describe_variables(set));
  }
  base::fail(ErrorKind::environment, {}, "environment",
             "{} from {} without {}; set the missing variables, or unset all of them to run as one process",
             describe_variables(set), launcher_name(set.source), join(missing(set)));
}

}  // namespace accelerate::env

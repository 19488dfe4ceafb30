// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/shell.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>

namespace accelerate::launch {
namespace {

/// Generates a job id as random_id.hpp does. It is on no command line, and differs in each run of the script.
constexpr std::string_view kDrawJobId =
    "ACCELERATE_JOB_ID=$(od -A n -N 16 -t x1 /dev/urandom | tr -d ' \\n') && export ACCELERATE_JOB_ID || exit 1\n";

bool is_plain(unsigned char c) {
  return c < 128 &&
         (std::isalnum(c) != 0 || std::string_view("_-+=./:,@%").find(static_cast<char>(c)) != std::string_view::npos);
}

/// Returns "env -u OLD NEW=1", which converts the launcher's environment to the worker's.
std::vector<std::string> changes(const env::Variables& from, const env::Variables& to) {
  std::vector<std::string> words{"env"};
  for (const auto& [name, value] : from) {
    if (!to.contains(name)) words.insert(words.end(), {"-u", name});
  }
  for (const auto& [name, value] : to) {
    const auto found = from.find(name);
    if (found == from.end() || found->second != value) words.push_back(fmt::format("{}={}", name, value));
  }
  return words;
}

std::vector<std::string> command_of(const WorkerPlan& worker, const env::Variables& inherited) {
  std::vector<std::string> words;
  if (!worker.processors.empty()) words = {"taskset", "-c", fmt::format("{}", fmt::join(worker.processors, ","))};
  const auto variables = changes(inherited, worker.environment);
  words.insert(words.end(), variables.begin(), variables.end());
  // env would read a program name with = as a variable.
  const bool looks_like_variable = worker.command.front().find('=') != std::string::npos;
  if (looks_like_variable) words.insert(words.end(), {"sh", "-c", R"(exec "$0" "$@")"});
  words.insert(words.end(), worker.command.begin(), worker.command.end());
  return words;
}

/// Uses mpirun, because a shell has no PMIx server; mpirun assigns the ranks.
std::string as_mpirun(const LaunchPlan& plan, const env::Variables& inherited) {
  constexpr std::array<std::string_view, 9> places{"RANK",
                                                   "WORLD_SIZE",
                                                   "LOCAL_RANK",
                                                   "LOCAL_WORLD_SIZE",
                                                   "MASTER_ADDR",
                                                   "MASTER_PORT",
                                                   "OMPI_MCA_schizo",
                                                   "TORCHELASTIC_RESTART_COUNT",
                                                   "TORCHELASTIC_USE_AGENT_STORE"};
  WorkerPlan all = plan.workers.front();
  for (const auto name : places) all.environment.erase(std::string(name));
  env::Variables before = inherited;
  std::erase_if(before, [](const auto& variable) { return is_foreign_launcher_variable(variable.first, true); });
  return fmt::format(
      "# accelerate_launch would start MPI itself; in a shell mpirun does.\nexec mpirun --oversubscribe -n {} {}\n",
      plan.workers.size(), for_shell(command_of(all, before)));
}

}  // namespace

std::string for_shell(std::string_view word) {
  // A word like A=1 before a command would be an assignment, but no word of ours is in that position.
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) return std::string(word);
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::string for_shell(const std::vector<std::string>& words) {
  std::string line;
  for (const auto& word : words) line += (line.empty() ? "" : " ") + for_shell(word);
  return line;
}

std::string as_script(const LaunchPlan& plan, const env::Variables& inherited, std::string_view folder) {
  std::string script = fmt::format("cd {} || exit 1\n", for_shell(folder));
  if (plan.workers.empty()) return script;
  if (plan.serve_mpi) return script + as_mpirun(plan, inherited);
  if (plan.machines == 1) script += kDrawJobId;  // with several machines, each would generate another id
  if (plan.workers.size() == 1) {
    return script + fmt::format("exec {}\n", for_shell(command_of(plan.workers.front(), inherited)));
  }
  script += "ranks=\n";
  for (const auto& worker : plan.workers) {
    script += fmt::format("{} &\nranks=\"$ranks $!\"\n", for_shell(command_of(worker, inherited)));
  }
  return script + "for rank in $ranks; do wait \"$rank\" || exit; done\n";
}

}  // namespace accelerate::launch

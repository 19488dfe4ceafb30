// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/questions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <istream>
#include <optional>
#include <ostream>

#include "accelerate/base/error.hpp"
#include "accelerate/env/parse.hpp"
#include "launch/plan/hosts.hpp"
#include "launch/plan/options.hpp"

namespace accelerate::launch {
namespace {

std::optional<int64_t> number_in(const std::string& text, int64_t lowest, int64_t highest) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && value >= lowest && value <= highest ? std::optional(value) : std::nullopt;
}

constexpr int64_t kMaxRanks = 4096;

void ask_for_machines(Questions& questions, ClusterConfig& config) {
  config.num_machines = questions.number("How many machines?", 1, kMaxRanks, 1);
  if (config.num_machines == 1) return;
  config.machine_rank = questions.number("Which of them is this one?", 0, config.num_machines - 1, 0);
  config.main_process_ip = questions.text("Name or address of machine 0?");
  config.main_process_port = questions.number("Port on which it listens?", 1, 65535, kDefaultPort);
}

void ask_for_ranks(Questions& questions, const Machine& machine, ClusterConfig& config) {
  const bool gpus = config.distributed_type == "MULTI_GPU";
  const int64_t here = gpus ? std::max<int64_t>(machine.gpus, 1) : 2;
  config.num_processes = questions.number("How many processes, on all machines together?", config.num_machines,
                                          kMaxRanks, std::min(kMaxRanks, here * config.num_machines));
  if (gpus) config.gpu_ids = questions.text("Which GPUs of each machine, as 0,1 or all?", std::string(kAllGpus));
  if (!gpus && config.num_machines > 1 &&
      questions.yes("Shall mpirun start them, on the hosts of a hostfile?", false)) {
    // Later readers of the file, including Accelerate's launcher, open the name without expanding "~".
    config.mpirun_hostfile =
        with_home(questions.text("The hostfile?", "~/hostfile"), env::find(env::current_variables(), "HOME"));
  }
  config.enable_cpu_affinity = questions.yes("Bind each process to its share of the processors?", false);
  config.debug = questions.yes(
      "Compare every collective across the processes first? Slower, but detects ranks that call different ones.",
      false);
  const std::vector<std::string> strategies{"no", "FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD"};
  const size_t strategy = questions.choose(
      "Shard the training? FULL_SHARD divides optimizer state, gradients and parameters over the processes, "
      "SHARD_GRAD_OP all but the parameters, HYBRID_SHARD everything over the processes of each machine.",
      strategies, 0);
  if (strategy > 0) config.sharding_strategy = strategies.at(strategy);
}

}  // namespace

void Questions::say(const std::string& sentence) { screen_ << sentence << "\n"; }

std::string Questions::line(const std::string& prompt) {
  screen_ << prompt << std::flush;
  std::string answer;
  if (!std::getline(answers_, answer)) {
    screen_ << "\n";
    base::fail(ErrorKind::usage, {}, "accelerate_config",
               "the input ended at '{}'; 'accelerate_config default' needs no answers",
               prompt.substr(0, prompt.find('\n')));
  }
  const auto first = answer.find_first_not_of(" \t\r");
  return first == std::string::npos ? "" : answer.substr(first, answer.find_last_not_of(" \t\r") + 1 - first);
}

size_t Questions::choose(const std::string& question, const std::vector<std::string>& choices, size_t by_default) {
  std::string prompt = question + "\n";
  for (size_t i = 0; i < choices.size(); ++i) prompt += fmt::format("  {}: {}\n", i, choices[i]);
  prompt += fmt::format("[{}]: ", by_default);
  while (true) {
    const std::string answer = line(prompt);
    if (answer.empty()) return by_default;
    const auto named = std::find(choices.begin(), choices.end(), answer);
    if (named != choices.end()) return static_cast<size_t>(named - choices.begin());
    if (const auto number = number_in(answer, 0, static_cast<int64_t>(choices.size()) - 1)) {
      return static_cast<size_t>(*number);
    }
    say(fmt::format("'{}' is not one of them; enter a number from 0 to {}", answer, choices.size() - 1));
  }
}

int64_t Questions::number(const std::string& question, int64_t lowest, int64_t highest, int64_t by_default) {
  while (true) {
    const std::string answer = line(fmt::format("{} [{}]: ", question, by_default));
    if (answer.empty()) return by_default;
    if (const auto value = number_in(answer, lowest, highest)) return *value;
    say(fmt::format("'{}' is not an integer from {} to {}", answer, lowest, highest));
  }
}

bool Questions::yes(const std::string& question, bool by_default) {
  while (true) {
    const std::string answer = line(fmt::format("{} [{}]: ", question, by_default ? "yes" : "no"));
    if (answer.empty()) return by_default;
    if (const auto flag = env::parse_bool(answer)) return *flag;
    say(fmt::format("'{}' is neither yes nor no", answer));
  }
}

std::string Questions::text(const std::string& question, const std::string& by_default) {
  while (true) {
    std::string answer = line(by_default.empty() ? question + " " : fmt::format("{} [{}]: ", question, by_default));
    if (!answer.empty()) return answer;
    if (!by_default.empty()) return by_default;
    say("This one has no default");
  }
}

ClusterConfig ask_for_config(Questions& questions, const Machine& machine) {
  const std::vector<std::string> types{"NO", "MULTI_CPU", "MULTI_GPU"};
  ClusterConfig config;
  const size_t type =
      questions.choose("Where will you train?",
                       {"in one process", "in several processes on CPUs", "in several processes with a GPU each"},
                       machine.gpus > 1 ? 2 : 0);
  config.distributed_type = types.at(type);
  config.use_cpu = type == 1 || (type == 0 && machine.gpus == 0);
  if (type == 0 && machine.gpus > 0) config.use_cpu = questions.yes("On the CPU, even if there is a GPU?", false);
  if (type != 0) {
    ask_for_machines(questions, config);
    ask_for_ranks(questions, machine, config);
  }
  const std::vector<std::string> precisions{"no", "bf16", "fp16"};
  config.mixed_precision = precisions.at(questions.choose("Mixed precision?", precisions, 0));
  return config;
}

}  // namespace accelerate::launch

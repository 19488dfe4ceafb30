// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/slurm.hpp"

#include "accelerate/env/parse.hpp"

namespace accelerate::env::slurm {
namespace {

constexpr int64_t kFirstReservedStep = 0xfffffffa;  // slurm.h: interactive, batch, extern, ... have ids from here on

/// One item, "2(x3)" or "2": number of tasks and of nodes.
struct Run {
  int64_t tasks = 0;
  int64_t nodes = 1;
};

std::optional<Run> parse_run(std::string_view item) {
  const size_t bracket = item.find("(x");
  const auto tasks = parse_integer(item.substr(0, bracket));
  if (!tasks || *tasks < 1) return std::nullopt;
  if (bracket == std::string_view::npos) return Run{*tasks, 1};
  if (!item.ends_with(')')) return std::nullopt;
  const auto nodes = parse_integer(item.substr(bracket + 2, item.size() - bracket - 3));
  if (!nodes || *nodes < 1) return std::nullopt;
  return Run{*tasks, *nodes};
}

}  // namespace

bool in_step(const Variables& variables) {
  const auto text = find(variables, "SLURM_STEP_ID");
  if (!text) return false;
  const auto step = parse_integer(*text);
  return !step || *step < kFirstReservedStep;
}

std::optional<std::string> first_host(std::string_view node_list) {
  std::string host;
  for (size_t at = 0; at < node_list.size() && node_list[at] != ','; ++at) {
    if (node_list[at] == ']') return std::nullopt;
    if (node_list[at] != '[') {
      host += node_list[at];
      continue;
    }
    const size_t close = node_list.find(']', at);
    if (close == std::string_view::npos) return std::nullopt;
    const std::string_view numbers = node_list.substr(at + 1, close - at - 1);
    const std::string_view first = numbers.substr(0, numbers.find_first_of("-,"));
    if (first.empty()) return std::nullopt;
    host += first;
    at = close;
  }
  if (host.empty()) return std::nullopt;
  return host;
}

std::optional<int64_t> tasks_of_node(std::string_view tasks_per_node, int64_t node) {
  if (const auto plain = parse_integer(tasks_per_node)) return plain;
  int64_t seen = 0;
  while (true) {
    const size_t comma = tasks_per_node.find(',');
    const auto run = parse_run(tasks_per_node.substr(0, comma));
    if (!run) return std::nullopt;
    seen += run->nodes;
    if (node < seen) return run->tasks;
    if (comma == std::string_view::npos) return std::nullopt;
    tasks_per_node.remove_prefix(comma + 1);
  }
}

int64_t port(int64_t job, int64_t step) { return 15000 + (job * 31 + step) % 17000; }

}  // namespace accelerate::env::slurm

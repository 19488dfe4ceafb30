// SPDX-License-Identifier: Apache-2.0
#include "launch/run/mpi_start.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace accelerate::launch {

std::vector<AtMpiStart> at_mpi_start(const std::vector<Worker>& workers, const MpiServer& server) {
  std::vector<AtMpiStart> all;
  for (const auto& worker : workers) {
    all.push_back({.rank = worker.rank,
                   .running = worker.running(),
                   .came = server.has_come(worker.rank),
                   .finalized = !server.not_finalized(worker.rank)});
  }
  return all;
}

std::vector<AtMpiStart> absent_of(const std::vector<AtMpiStart>& ranks) {
  std::vector<AtMpiStart> absent;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(absent), [](const auto& each) { return !each.came; });
  return absent;
}

std::vector<AtMpiStart> awaited(const std::vector<AtMpiStart>& ranks) {
  const bool somebody_waits =
      std::any_of(ranks.begin(), ranks.end(), [](const auto& each) { return each.running && !each.finalized; });
  return somebody_waits ? absent_of(ranks) : std::vector<AtMpiStart>{};
}

std::string names(const std::vector<AtMpiStart>& ranks) {
  std::string list;
  for (const auto& each : ranks) list += fmt::format("{}{}", list.empty() ? "" : ", ", each.rank);
  return fmt::format("{} {}", ranks.size() == 1 ? "worker" : "workers", list);
}

}  // namespace accelerate::launch

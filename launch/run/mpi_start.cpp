// SPDX-License-Identifier: Apache-2.0
#include "launch/run/mpi_start.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace accelerate::launch {

std::vector<MpiInitStatus> mpi_init_status(const std::vector<Worker>& workers, const MpiServer& server) {
  std::vector<MpiInitStatus> all;
  for (const auto& worker : workers) {
    all.push_back({.rank = worker.rank,
                   .running = worker.running(),
                   .has_joined = server.joined_mpi_init(worker.rank),
                   .finalized = !server.not_finalized(worker.rank)});
  }
  return all;
}

std::vector<MpiInitStatus> not_in_mpi_init(const std::vector<MpiInitStatus>& ranks) {
  std::vector<MpiInitStatus> absent;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(absent),
               [](const auto& each) { return !each.has_joined; });
  return absent;
}

std::vector<MpiInitStatus> awaited_in_mpi_init(const std::vector<MpiInitStatus>& ranks) {
  const bool somebody_waits =
      std::any_of(ranks.begin(), ranks.end(), [](const auto& each) { return each.running && !each.finalized; });
  return somebody_waits ? not_in_mpi_init(ranks) : std::vector<MpiInitStatus>{};
}

std::string names(const std::vector<MpiInitStatus>& ranks) {
  std::string list;
  for (const auto& each : ranks) list += fmt::format("{}{}", list.empty() ? "" : ", ", each.rank);
  return fmt::format("{} {}", ranks.size() == 1 ? "worker" : "workers", list);
}

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/mpi/start_diagnosis.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <mutex>
#include <string_view>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "accelerate/comm/core/deadline_call.hpp"
#include "accelerate/env/slurm.hpp"

namespace accelerate::comm {
namespace {

using namespace std::chrono_literals;

constexpr auto kStartDiagnosisPort = 2s;

/// "309526528.0;tcp://10.77.0.1:33615" -> "10.77.0.1", "309526528.0;tcp6://[fd00::1]:33615" -> "fd00::1". Returns
/// nothing for several addresses.
std::optional<std::string> only_address(std::string_view uri) {
  const size_t scheme = uri.find(";tcp");
  const size_t begin = uri.find("://");
  const size_t end = uri.rfind(':');
  if (scheme == uri.npos || begin == uri.npos || begin < scheme || end < begin + 3) return std::nullopt;
  std::string_view address = uri.substr(begin + 3, end - begin - 3);
  if (address.find_first_of(",;") != address.npos) return std::nullopt;
  if (address.starts_with('[') && address.ends_with(']')) address = address.substr(1, address.size() - 2);
  if (address.empty()) return std::nullopt;
  return std::string(address);
}

/// Returns a port that is equal on all ranks of a job and differs between jobs.
int64_t port_of_job(const std::string& job_id) {
  int64_t number = 0;
  for (const char letter : job_id) number = (number * 31 + letter) % 1'000'003;
  return env::slurm::port(number, 0);
}

/// Answers received so far by a thread that may hang in an unresponsive store.
class StartDiagnosis {
 public:
  explicit StartDiagnosis(int64_t ranks) : received_(static_cast<size_t>(ranks)) {}
  void receive_reports(int64_t rank) {
    const std::lock_guard lock(mutex_);
    received_[static_cast<size_t>(rank)] = true;
  }
  std::vector<int64_t> silent() {
    const std::lock_guard lock(mutex_);
    std::vector<int64_t> ranks;
    for (size_t rank = 0; rank < received_.size(); ++rank) {
      if (!received_[rank]) ranks.push_back(static_cast<int64_t>(rank));
    }
    return ranks;
  }

 private:
  std::mutex mutex_;
  std::vector<bool> received_;
};

/// Waits for a listener. LibTorch's own retry cannot be interrupted and logs a backtrace each time.
bool report_arrival(const Endpoint& place, Deadline deadline) {
  const Addresses addresses = resolve_endpoint(place, {}, deadline);
  while (!is_port_open(addresses, deadline)) {
    if (std::chrono::steady_clock::now() + 50ms > deadline) return false;
    std::this_thread::sleep_for(50ms);
  }
  return true;
}

/// Serves until the deadline, so that slightly later ranks still find rank 0's store.
void query_rank(const Endpoint& place, const env::ProcessEnv& process, FileDescriptor listening, Deadline deadline,
                StartDiagnosis& roll) {
  if (!listening && !report_arrival(place, deadline)) return;
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(place.port);
  options.isServer = static_cast<bool>(listening);
  options.waitWorkers = false;
  options.timeout = kStartDiagnosisPort;
  if (listening) options.masterListenFd = listening.release();
  const auto key = [&](int64_t rank) { return fmt::format("roll/{}/{}", process.job_id, rank); };
  const auto store = c10::make_intrusive<c10d::TCPStore>(place.host, options);
  store->c10d::Store::set(key(process.rank), "");
  while (std::chrono::steady_clock::now() < deadline) {
    for (const int64_t rank : roll.silent()) {
      if (store->check({key(rank)})) roll.receive_reports(rank);
    }
    std::this_thread::sleep_for(50ms);
  }
}

}  // namespace

std::optional<Endpoint> diagnosis_address(const env::ProcessEnv& process, const env::Variables& variables) {
  if (!process.spans_machines()) return std::nullopt;
  if (process.master_addr && process.master_port) return Endpoint{*process.master_addr, *process.master_port};
  const auto uri = variables.find("OMPI_MCA_orte_hnp_uri");
  if (process.master_addr || uri == variables.end()) return std::nullopt;
  const auto address = only_address(uri->second);
  if (!address) return std::nullopt;
  return Endpoint{*address, port_of_job(process.job_id)};
}

std::string diagnose_start(const Endpoint& place, const env::ProcessEnv& process) noexcept try {
  const auto deadline = std::chrono::steady_clock::now() + kStartDiagnosisPort;
  FileDescriptor listening;
  if (process.rank == 0) listening = listen_on(place, {}, deadline);
  const auto roll = std::make_shared<StartDiagnosis>(process.world_size);
  roll->receive_reports(process.rank);
  try {
    run_with_deadline(deadline + 1s, [=, socket = std::move(listening)]() mutable {
      query_rank(place, process, std::move(socket), deadline, *roll);
      return true;
    });
  } catch (const std::exception&) {  // rank 0 is missing, or stopped serving after its own two seconds
  }
  auto silent = roll->silent();
  const bool no_response = static_cast<int64_t>(silent.size()) == process.world_size - 1;
  if (process.rank != 0 && no_response) silent = {0};  // without rank 0 the other ranks are unknown
  if (silent.empty()) return "all ranks have joined, but MPI does not connect them";
  return fmt::format("no response from {} {}", silent.size() == 1 ? "rank" : "ranks", fmt::join(silent, ", "));
} catch (const std::exception&) {
  return "";
}

}  // namespace accelerate::comm

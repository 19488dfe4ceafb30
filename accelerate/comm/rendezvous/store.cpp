// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/rendezvous/store.hpp"

#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "accelerate/comm/core/deadline_call.hpp"
#include "accelerate/comm/core/peer_error_text.hpp"
#include "accelerate/comm/rendezvous/interfaces.hpp"
#include "accelerate/comm/rendezvous/sockets.hpp"

namespace accelerate::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// Maximum response time of a working store.
constexpr Milliseconds kAnswerTime{2'000};

/// Deadline of this rank, and the original timeout for messages.
struct StoreDeadlines {
  explicit StoreDeadlines(Milliseconds given) : timeout(given), deadline(Clock::now() + given) {}
  [[nodiscard]] Milliseconds remaining() const {
    return std::max(std::chrono::ceil<Milliseconds>(deadline - Clock::now()), Milliseconds(1));
  }
  /// LibTorch's store keeps the deadline while the server answers. If the server hangs, the call is abandoned a little
  /// later.
  [[nodiscard]] Deadline final_wait() const { return deadline + kAnswerTime; }
  Milliseconds timeout;
  Deadline deadline;
};

/// Waits for the server, because TCPStore's own retry sleeps a second and logs a backtrace each time.
void wait_for_server(const Endpoint& endpoint, const RankContext& place, const StoreDeadlines& patience) {
  const Addresses addresses = resolve_endpoint(endpoint, place, patience.deadline);
  for (Milliseconds pause{5}; !is_port_open(addresses, patience.deadline);
       pause = std::min(pause * 2, Milliseconds(250))) {
    if (Clock::now() + pause > patience.deadline) {
      throw Error(
          ErrorKind::peer, place, "connect",
          fmt::format("waited {:g} s for rank 0 at {}, it did not join; start it, or check MASTER_ADDR and MASTER_PORT",
                      seconds(patience.timeout), text(endpoint)),
          {0});
    }
    std::this_thread::sleep_for(pause);
  }
}

Endpoint endpoint_of(const env::ProcessEnv& process, const RankContext& place) {
  // A job on one machine needs no address.
  if (!process.master_addr && process.spans_machines()) {
    base::fail(ErrorKind::environment, place, "connect",
               "MASTER_ADDR is not set, and the job spans machines; set it to the address of rank 0's");
  }
  if (!process.master_port || *process.master_port == 0) {
    base::fail(ErrorKind::environment, place, "connect",
               "MASTER_PORT is {}, must be a free port of rank 0's machine, the same on all ranks",
               process.master_port ? "0" : "not set");
  }
  return {process.master_addr.value_or("127.0.0.1"), *process.master_port};
}

/// First key that rank 0 writes, so that no rank joins the store of another job.
constexpr const char* kOwnerKey = "accelerate/job";

[[noreturn]] void throw_foreign_store(const Endpoint& endpoint, const RankContext& place) {
  base::fail(ErrorKind::peer, place, "connect", "what answers at {} is not the store of rank 0 of this job",
             text(endpoint));
}

[[noreturn]] void throw_store_timeout(const Endpoint& endpoint, const RankContext& place,
                                      const StoreDeadlines& patience) {
  base::fail(ErrorKind::peer, place, "connect",
             "waited {:g} s for the job's store at {}, which accepts connections but does not answer: rank 0 "
             "hangs, or another program holds the port",
             seconds(patience.timeout), text(endpoint));
}

/// Opens the server's store if `listening` is a socket, otherwise a client's.
StorePtr open_store(const Endpoint& endpoint, FileDescriptor listening, const env::ProcessEnv& process,
                    const RankContext& place, const StoreDeadlines& patience) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(endpoint.port);
  options.isServer = static_cast<bool>(listening);
  options.waitWorkers = false;
  options.timeout = patience.remaining();
  if (listening) {
    options.masterListenFd = listening.release();
  } else {
    wait_for_server(endpoint, place, patience);
  }
  std::optional<StorePtr> store;
  try {
    store = run_with_deadline(patience.final_wait(), [host = endpoint.host, options, process, patience]() -> StorePtr {
      auto opened = c10::make_intrusive<c10d::TCPStore>(host, options);
      opened->setTimeout(patience.timeout);
      if (options.isServer) opened->c10d::Store::set(kOwnerKey, process.job_id);
      return opened;
    });
  } catch (const std::exception&) {
    throw_foreign_store(endpoint, place);
  }
  if (!store) throw_store_timeout(endpoint, place, patience);
  return *store;
}

[[noreturn]] void fail_without_store(const env::ProcessEnv& process, const Endpoint& endpoint, const RankContext& place,
                                     Clock::duration waited) {
  const bool agent = process.agent_store;
  base::fail(ErrorKind::peer, place, "connect",
             "the connection to the job's store at {} was lost after {:.1f} s: {} probably ended; look at its output",
             text(endpoint), seconds(waited), agent ? "torchrun's agent" : "rank 0");
}

/// Compares rank 0's job id with this rank's. Skipped under torchrun, because its agent does not write the key.
void check_owner(const StorePtr& store, const env::ProcessEnv& process, const Endpoint& endpoint,
                 const RankContext& place, const StoreDeadlines& patience) {
  if (process.agent_store || process.rank == 0) return;
  const auto begun = Clock::now();
  std::optional<std::string> owner;
  try {
    owner = run_with_deadline(patience.final_wait(), [store, limit = patience.remaining()] {
      store->wait({kOwnerKey}, limit);
      return store->get_to_str(kOwnerKey);
    });
  } catch (const std::exception&) {  // timeout at a foreign store, or the store is lost
    if (Clock::now() < patience.deadline) fail_without_store(process, endpoint, place, Clock::now() - begun);
    throw_foreign_store(endpoint, place);
  }
  if (!owner) throw_store_timeout(endpoint, place, patience);
  if (*owner != process.job_id) throw_foreign_store(endpoint, place);
}

std::string here_key(int64_t rank) { return fmt::format("here/{}", rank); }

/// \throws the store's exception if it is gone.
std::vector<int64_t> missing_ranks_of_store(c10d::Store& store, int64_t world_size) {
  std::vector<int64_t> missing;
  for (int64_t rank = 0; rank < world_size; ++rank) {
    if (!store.check({here_key(rank)})) missing.push_back(rank);
  }
  return missing;
}

[[noreturn]] void throw_duplicate_rank(const env::ProcessEnv& process, const Endpoint& endpoint,
                                       const RankContext& place) {
  base::fail(ErrorKind::peer, place, "connect",
             "another process already joined at {} as rank {}; give each job its own port (MASTER_PORT), and the "
             "ranks of one job an ACCELERATE_JOB_ID that no other job has",
             text(endpoint), process.rank);
}

/// State of the job at the store when this rank's wait ends.
struct RegisteredRanks {
  bool twice = false;  ///< another process has the same rank
  bool lost = false;   ///< the store is lost
  std::vector<int64_t> missing{};
};

/// Keeps the store alive a little longer, so that the other ranks can also read which ranks are missing; the store ends
/// with rank 0.
void part_together(c10d::Store& store, const env::ProcessEnv& process, const std::vector<int64_t>& missing) {
  const auto key = [](int64_t rank) { return fmt::format("parts/{}", rank); };
  store.set(key(process.rank), "");
  if (process.rank != 0 || process.agent_store) return;
  std::vector<std::string> others;
  for (int64_t rank = 1; rank < process.world_size; ++rank) {
    if (std::find(missing.begin(), missing.end(), rank) == missing.end()) others.push_back(key(rank));
  }
  if (!others.empty()) store.wait(others, kAnswerTime);
}

RegisteredRanks register_rank(c10d::Store& store, const env::ProcessEnv& process, Milliseconds timeout) {
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < process.world_size; ++rank) keys.push_back(here_key(rank));
  RegisteredRanks found;
  try {
    // Under an agent, ranks before a membership change have left their keys, and the restart count does not change.
    found.twice = store.add(here_key(process.rank), 1) > 1 && !process.agent_store;
    if (!found.twice) store.wait(keys, timeout);
  } catch (const std::exception&) {  // late ranks, or a lost store: the query below distinguishes them
    try {
      found.missing = missing_ranks_of_store(store, process.world_size);
    } catch (const std::exception&) {
      found.lost = true;
    }
  }
  try {
    if (!found.missing.empty()) part_together(store, process, found.missing);
  } catch (const std::exception&) {  // they did not join in time, or the store was lost first
  }
  return found;
}

/// Reports missing ranks before a backend fails with its own message.
void wait_for_all(const StorePtr& store, const env::ProcessEnv& process, const Endpoint& endpoint,
                  const RankContext& place, const StoreDeadlines& patience) {
  const auto begun = Clock::now();
  // rank 0 additionally waits for the others
  const auto final_wait = patience.final_wait() + (process.rank == 0 ? kAnswerTime : Milliseconds(0));
  const auto found = run_with_deadline(
      final_wait, [store, process, limit = patience.remaining()] { return register_rank(*store, process, limit); });
  if (!found) throw_store_timeout(endpoint, place, patience);
  if (found->twice) throw_duplicate_rank(process, endpoint, place);
  if (found->lost) fail_without_store(process, endpoint, place, Clock::now() - begun);
  if (found->missing.empty()) return;
  const bool one = found->missing.size() == 1;
  throw Error(ErrorKind::peer, place, "connect",
              fmt::format("waited {:g} s for {} {}, which did not join", seconds(patience.timeout),
                          one ? "rank" : "ranks", fmt::join(found->missing, ", ")),
              found->missing);
}

/// The machine's host name may resolve to a loopback address locally (Debian's 127.0.1.1) and to another one elsewhere.
void refuse_loopback(const Endpoint& endpoint, const FileDescriptor& listening, const RankContext& place) {
  const std::string bound = host_of(listening);
  const bool loopback = bound.starts_with("127.") || bound == "::1";
  if (!loopback || endpoint.host == bound || endpoint.host == "localhost") return;
  base::fail(ErrorKind::environment, place, "connect",
             "MASTER_ADDR is '{}', which is {} on rank 0's machine, which other machines cannot reach; set it to the "
             "address at which they reach it",
             endpoint.host, bound);
}

FileDescriptor listen_for(const env::ProcessEnv& process, const Endpoint& endpoint, const RankContext& place,
                          Deadline deadline) {
  FileDescriptor socket = listen_on(endpoint, place, deadline);
  if (process.spans_machines()) refuse_loopback(endpoint, socket, place);
  return socket;
}

// A job has one port but may have several connections (Accelerators). The first connection opens the store, which stays
// open until the process ends, so that no later connection finds a server that is shutting down.
struct RendezvousStore {
  std::mutex mutex;
  StorePtr store;
  int64_t connections = 0;
};

StorePtr next_connection(const env::ProcessEnv& process, const Endpoint& endpoint, const RankContext& place,
                         const StoreDeadlines& patience) {
  // One lock per rank, because ranks may be threads of one process: a rank that waits for rank 0 must not block rank 0.
  static std::mutex mutex;
  static std::map<std::string, RendezvousStore> jobs;
  const auto job_of = [&](const std::string& key) -> RendezvousStore& {
    const std::lock_guard lock(mutex);
    return jobs[key];
  };
  RendezvousStore& job = job_of(fmt::format("{} {} {} {}", endpoint.host, endpoint.port, process.job_id, process.rank));
  const std::lock_guard lock(job.mutex);
  if (!job.store) {
    FileDescriptor listening;
    if (process.rank == 0 && !process.agent_store) listening = listen_for(process, endpoint, place, patience.deadline);
    const auto store = open_store(endpoint, std::move(listening), process, place, patience);
    check_owner(store, process, endpoint, place, patience);
    job.store = store;
  }
  // All ranks open their connections in the same order, so the counters agree.
  return c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("accelerate/{}/{}/{}", process.job_id, process.restart_count, job.connections++), job.store);
}

Endpoint free_endpoint(const env::ProcessEnv& process, const RankContext& place, Deadline deadline) {
  if (process.master_addr) return {*process.master_addr, 0};
  if (!process.spans_machines()) return {"127.0.0.1", 0};
  return {address_for_others(addresses_of_own_name(deadline), interfaces(), place), 0};
}

}  // namespace

StorePtr rendezvous_store(const env::ProcessEnv& process, const RankContext& place, Milliseconds timeout) {
  if (process.world_size == 1) return c10::make_intrusive<c10d::HashStore>();
  const Endpoint endpoint = endpoint_of(process, place);
  const StoreDeadlines patience(timeout);
  auto store = next_connection(process, endpoint, place, patience);
  wait_for_all(store, process, endpoint, place, patience);
  return store;
}

StorePtr rendezvous_store_over(c10d::Backend& backend, const env::ProcessEnv& process, const RankContext& place,
                               Milliseconds timeout) {
  if (process.world_size == 1) return c10::make_intrusive<c10d::HashStore>();
  const StoreDeadlines patience(timeout);
  const bool serve = process.rank == 0;
  Endpoint endpoint{"", 0};
  std::vector<at::Tensor> address{at::zeros({NI_MAXHOST + 1}, at::kLong)};
  auto* const words = address[0].mutable_data_ptr<int64_t>();
  StorePtr store;
  if (serve) {
    endpoint = free_endpoint(process, place, Clock::now() + patience.remaining() / 2);
    FileDescriptor socket = listen_for(process, endpoint, place, patience.deadline);
    endpoint.port = port_of(socket);
    std::copy(endpoint.host.begin(), endpoint.host.end(), words + 1);
    words[0] = endpoint.port;
    store = open_store(endpoint, std::move(socket), process, place, patience);
  }
  backend.broadcast(address, {.rootRank = 0, .timeout = timeout})->wait(timeout);
  if (serve) return store;
  endpoint.port = words[0];
  endpoint.host.assign(words + 1, std::find(words + 1, words + NI_MAXHOST, 0));
  return open_store(endpoint, {}, process, place, patience);
}

}  // namespace accelerate::comm

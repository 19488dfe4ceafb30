// SPDX-License-Identifier: Apache-2.0
// One rank of a job that fails on purpose, started by the faults tests. Prints the errors that it gets, exits with 3.
#include <ATen/ops/ones.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "accelerate/base/heartbeat.hpp"
#include "accelerate/comm/group.hpp"
#include "accelerate/comm/rendezvous/store.hpp"
#include "accelerate/comm/rendezvous/store_peer_diagnosis.hpp"
#include "accelerate/job/start.hpp"
#include "fault_threads.hpp"
#if ACCELERATE_HAS_MPI
#include "fault_mpi.hpp"
#endif

namespace {

using accelerate::comm::Group;
using namespace std::chrono_literals;

void report(const accelerate::Error& error) {
  std::printf("%s: %s\n", std::string(error_kind_name(error.kind())).c_str(), error.what());
  if (std::getenv("FAULT_FIELDS") != nullptr) fmt::print("missing: {}\n", fmt::join(error.missing_ranks(), " "));
  std::fflush(stdout);
}

void join_late(std::chrono::seconds by = 8s) {
  std::this_thread::sleep_for(by);
  std::puts("rank 1 slept to the end");
  std::fflush(stdout);
  _exit(0);
}

void late(const Group& group, int64_t elements = 4) {
  if (group.rank() == 1) join_late();
  try {
    group.all_reduce(at::ones({elements}));
  } catch (const accelerate::Error& error) {
    report(error);
    group.barrier();
  }
}

void late_barrier(const Group& group) {
  if (group.rank() == 1) join_late();
  group.barrier();
}

void late_large(const Group& group) { late(group, 3'000'000); }

void dies(const Group& group, int64_t rank) {
  group.barrier();
  if (group.rank() == rank) _exit(7);
  std::this_thread::sleep_for(300ms);
  group.all_reduce(at::ones({4}));
}

/// Rank 1 never joins.
void sleeps(const Group& group) {
  group.barrier();
  if (group.rank() == 1) std::this_thread::sleep_for(300s);
  group.all_reduce(at::ones({4}));
}

/// Rank 1 runs seven seconds of its own steps while rank 0 waits for it; then rank 1 exits at once and rank 0
/// continues.
void continues_alone(const Group& group) {
  group.barrier();
  for (int i = 0; group.rank() == 1 && i < 70; ++i) {
    std::this_thread::sleep_for(100ms);
    accelerate::base::record_heartbeat_step();
  }
  group.all_reduce(at::ones({4}));
  if (group.rank() == 0) std::this_thread::sleep_for(1s);
  _exit(0);  // the destructor of the group would wait for the other rank
}

/// Rank 0 hangs like a frozen machine: its sockets stay open, and it answers nothing.
void rank_0_freezes(const Group& group) {
  group.barrier();
  if (group.rank() == 0) {
    if (::fork() == 0) {
      ::sleep(12);
      ::kill(::getppid(), SIGKILL);
      _exit(0);
    }
    ::raise(SIGSTOP);
  }
  group.all_reduce(at::ones({4}));
}

void ragged(const Group& group) { static_cast<void>(group.all_gather(at::ones({64, group.rank() == 1 ? 12 : 10}))); }

void shapes(const Group& group, int64_t elements = 4) { group.all_reduce(at::ones({group.rank() + elements})); }

void row_shapes(const Group& group) {
  const int64_t rows = 2 + group.rank();
  group.reduce_scatter_async(at::zeros({rows}), at::ones({2 * rows})).wait();
}

void part_shapes(const Group& group) {
  const int64_t rows = 2 + group.rank();
  group.all_gather_async(at::zeros({2 * rows}), at::ones({rows})).wait();
}

void shapes_broadcast(const Group& group) {
  group.broadcast(at::ones({5 - group.rank()}));
  group.barrier();
}

void dtypes(const Group& group, int64_t elements = 4) {
  group.all_reduce(at::ones({elements}, group.rank() == 0 ? at::kFloat : at::kInt));
}

void shapes_reduce(const Group& group) { group.reduce(at::ones({group.rank() + 4})); }

void reductions(const Group& group) {
  group.all_reduce(at::ones({4}),
                   group.rank() == 0 ? accelerate::comm::ReduceOp::sum : accelerate::comm::ReduceOp::max);
}

void roots(const Group& group) { group.broadcast(at::ones({4}), group.rank()); }

/// Joins, and becomes silent in the middle.
void stops(const Group& group) {
  const auto tensor = at::ones({100'000'000});
  if (group.rank() == 1) {
    static_cast<void>(group.all_reduce_async(tensor));
    std::this_thread::sleep_for(30ms);
    ::raise(SIGSTOP);
  }
  group.all_reduce(tensor);
}

/// Rank 1 does not join, or joins and becomes silent in the middle.
void one_of_many(const Group& group, int64_t elements, bool comes) {
  const auto tensor = at::ones({elements});
  group.barrier();  // all have started
  // the launcher stops it when the slowest of nine ranks has timed out
  if (group.rank() == 1 && !comes) join_late(60s);
  auto sum = group.all_reduce_async(tensor);
  if (group.rank() == 1) {
    std::this_thread::sleep_for(30ms);
    ::raise(SIGSTOP);
  }
  sum.wait(2s);
}

/// Every operation that may wait for rank 1, each with its own group.
const std::map<std::string, void (*)(const Group&)> kWaits{
    {"all_gather", [](const Group& group) { static_cast<void>(group.all_gather(at::ones({2}))); }},
    {"all_gather_async", [](const Group& group) { group.all_gather_async(at::ones({4}), at::ones({2})).wait(); }},
    {"all_gather_bytes", [](const Group& group) { static_cast<void>(group.all_gather_bytes("bytes")); }},
    {"all_to_all",
     [](const Group& group) {
       static_cast<void>(group.all_to_all({at::ones({2}), at::ones({3})}));
     }},
    {"broadcast", [](const Group& group) { group.broadcast(at::ones({2}), 1); }},
    {"broadcast_bytes", [](const Group& group) { static_cast<void>(group.broadcast_bytes("bytes", 1)); }},
    {"duplicate", [](const Group& group) { static_cast<void>(group.duplicate()); }},
    {"gather", [](const Group& group) { static_cast<void>(group.gather(at::ones({2}))); }},
    {"reduce", [](const Group& group) { group.reduce(at::ones({2})); }},
    {"reduce_scatter", [](const Group& group) { static_cast<void>(group.reduce_scatter(at::ones({4}))); }},
    {"scatter", [](const Group& group) { static_cast<void>(group.scatter({}, 1)); }},
    {"send", [](const Group& group) { group.send(at::ones({3'000'000}), 1); }},
    {"split", [](const Group& group) { static_cast<void>(group.split(0)); }},
};

std::string error_of(const Group& group, void (*wait)(const Group&)) {
  try {
    wait(group);
  } catch (const accelerate::Error& error) {
    return error.what();
  }
  return "nothing";
}

void late_to_all(const Group& group) {
  std::map<std::string, Group> groups;
  for (const auto& [name, wait] : kWaits) groups.emplace(name, group.duplicate());
  if (group.rank() == 1) join_late();
  std::map<std::string, std::future<std::string>> all;
  for (const auto& [name, wait] : kWaits) {
    all[name] = std::async(std::launch::async, error_of, groups.at(name), wait);
  }
  for (auto& [name, text] : all) std::printf("%s> %s\n", name.c_str(), text.get().c_str());
  std::fflush(stdout);
  _exit(3);
}

/// An operation for which only one thread of rank 0 waits, behind one that rank 1 does not join.
void late_second(const Group& group) {
  if (group.rank() == 1) join_late();
  auto first = group.all_reduce_async(at::ones({2}));
  auto second = group.all_reduce_async(at::ones({3}));
  second.wait(500ms);
}

/// Two pending operations; the wait of the first one breaks the group.
void late_and_next(const Group& group) {
  if (group.rank() == 1) join_late();
  auto first = group.all_reduce_async(at::ones({2}));
  auto second = group.all_reduce_async(at::ones({3}));
  try {
    first.wait(500ms);
  } catch (const accelerate::Error& error) {
    report(error);
  }
  second.wait();
}

void rows_late(const Group& group) {
  if (group.rank() == 1) join_late();
  group.reduce_scatter_async(at::zeros({2}), at::ones({4})).wait(500ms);
}

/// Gloo gathers parts of this size by several operations.
void large_gather(const Group& group) {
  group.barrier();
  if (group.rank() == 1) std::_Exit(7);
  group.all_gather_async(at::zeros({2 << 16}), at::ones({1 << 16})).wait();
}

void large_gather_late(const Group& group) {
  if (group.rank() == 1) join_late();
  group.all_gather_async(at::zeros({2 << 16}), at::ones({1 << 16})).wait(500ms);
}

void gathers(const Group& group) {
  if (group.rank() == 0) static_cast<void>(group.all_gather(at::ones({2})));
  if (group.rank() == 1) group.all_gather_async(at::zeros({4}), at::ones({2})).wait();
}

void late_message(const Group& group) {
  if (group.rank() == 1) join_late();
  group.recv(at::ones({2}), 1);
}

/// Rank 1 exits normally after a message that no rank has received yet; rank 0 waits for another one.
void message_of_ended_rank(const Group& group) {
  const auto tensor = at::ones({3'000'000});
  if (group.rank() == 1) return group.send(tensor, 0);
  std::this_thread::sleep_for(1s);
  group.recv(tensor, 1);
  std::puts("the first message");
  group.recv(at::ones({2}), 1);
}

void operation_of_ended_rank(const Group& group) {
  if (group.rank() == 0) group.all_reduce(at::ones({4}));
}

void message_to_ended_rank(const Group& group) {
  if (group.rank() == 0) group.send(at::ones({3'000'000}), 1);
}

/// Rank 1 calls one more operation than the others, between two steps of a model.
void extra(const Group& group, bool barrier_follows) {
  const Group model = group.duplicate();
  for (int step = 0; step < 3; ++step) {
    model.all_reduce(at::ones({6}));
    if (step == 1 && group.rank() == 1) group.all_reduce(at::ones({2}));
    if (barrier_follows) group.barrier();
  }
}

void operations(const Group& group) {
  group.barrier();
  if (group.rank() == 0) group.barrier();
  if (group.rank() == 1) group.broadcast(at::ones({2}));
}

void messages(const Group& group) {
  if (group.rank() == 0) group.send(at::ones({4}), 1);
  if (group.rank() == 1) group.recv(at::ones({3}), 0);
}

/// Four seconds of steps, each with its own group, for which the ranks query the store.
void completes(const Group& group) {
  for (int step = 0; step < 40; ++step) {
    const auto sum = at::ones({4});
    group.duplicate().all_reduce(sum);
    if (sum.sum().item<double>() != 8) _exit(1);
    std::this_thread::sleep_for(100ms);
  }
  std::puts("40 steps");
}

const std::map<std::string, void (*)(const Group&)> kScenarios{
    {"connect", [](const Group&) {}},
    {"slow_connect", [](const Group&) {}},
    {"works", completes},
    {"sleeps", sleeps},
    {"gets_on_alone", continues_alone},
    {"late", [](const Group& group) { late(group); }},
    {"late_named", [](const Group& group) { late(group.split(0, "tensor parallel")); }},
    {"rank_1_dies", [](const Group& group) { dies(group, 1); }},
    {"rank_0_dies", [](const Group& group) { dies(group, 0); }},
    {"rank_0_freezes", rank_0_freezes},
    {"ragged", ragged},
    {"shapes", [](const Group& group) { shapes(group); }},
    {"shapes_large", [](const Group& group) { shapes(group, 3'000'000); }},
    {"shapes_broadcast", shapes_broadcast},
    {"shapes_reduce", shapes_reduce},
    {"row_shapes", row_shapes},
    {"part_shapes", part_shapes},
    {"debug_shapes", [](const Group& group) { shapes(group); }},
    {"debug_extra", [](const Group& group) { extra(group, true); }},
    {"debug_extra_last", [](const Group& group) { extra(group, false); }},
    {"dtypes", [](const Group& group) { dtypes(group); }},
    {"dtypes_large", [](const Group& group) { dtypes(group, 3'000'000); }},
    {"debug_dtypes", [](const Group& group) { dtypes(group); }},
    {"reductions", reductions},
    {"debug_reductions", reductions},
    {"roots", roots},
    {"debug_roots", roots},
    {"operations", operations},
    {"messages", messages},
    {"message_of_ended_rank", message_of_ended_rank},
    {"message_to_ended_rank", message_to_ended_rank},
    {"operation_of_ended_rank", operation_of_ended_rank},
    {"stops", stops},
    {"late_of_many", [](const Group& group) { one_of_many(group, 2'000'000, false); }},
    {"stops_of_many", [](const Group& group) { one_of_many(group, 20'000'000, true); }},
    {"late_to_all", late_to_all},
    {"late_second", late_second},
    {"late_and_next", late_and_next},
    {"rows_late", rows_late},
    {"large_gather", large_gather},
    {"large_gather_late", large_gather_late},
    {"gathers", gathers},
    {"late_message", late_message},
    {"late_large", late_large},
    {"late_barrier", late_barrier},
    {"debug_operations", operations},
    {"debug_messages", messages},
};

/// Joins the store, and not the backend.
void meets_only(std::chrono::milliseconds then) {
  const auto process = accelerate::env::read_process_env(accelerate::env::current_variables());
  static_cast<void>(accelerate::comm::rendezvous_store(process, {}, 60s));
  std::this_thread::sleep_for(then);
  _exit(0);
}

/// Several groups in sequence, each dropped as soon as it is connected: a fast rank must not exit while others connect.
void connects_and_drops() {
  const auto process = accelerate::env::read_process_env(accelerate::env::current_variables());
  for (int i = 0; i < 300; ++i) static_cast<void>(accelerate::comm::connect(process, {.timeout = 20s}));
  std::puts("300 groups");
}

/// The last rank begins to connect the backend and dies.
void last_dies_connecting() {
  const auto process = accelerate::env::read_process_env(accelerate::env::current_variables());
  if (process.rank + 1 < process.world_size) {
    return static_cast<void>(accelerate::comm::connect(process, {.timeout = 2s}));
  }
  const auto store = accelerate::comm::rendezvous_store(process, {}, 60s);
  accelerate::comm::announce_arrival(*store, "world", process.rank);
  _exit(7);
}

void run_more_threads_than_allowed() {
  faults::refuse_threads_after(3);
  accelerate::comm::run_threads(5, [](const Group& group) { group.barrier(); });
}

/// Rank 1 reaches MPI_Init 20 s late, and rank 0 waits for 2 s.
void does_not_join() {
  const auto process = accelerate::env::read_process_env(accelerate::env::current_variables());
  if (process.rank == 1) std::this_thread::sleep_for(20s);
  static_cast<void>(accelerate::comm::connect(process, {.timeout = 2s}));
}

/// Rank 0 handles an exception that destroys its group, and exits at once; rank 1 continues for 3 s.
void caught() {
  const auto process = accelerate::env::read_process_env(accelerate::env::current_variables());
  try {
    const auto group = accelerate::comm::connect(process, {.timeout = 60s});
    group.barrier();
    if (process.rank == 1) std::this_thread::sleep_for(3s);
    throw std::runtime_error("handled");
  } catch (const std::runtime_error&) {
  }
  std::printf("rank %d saved\n", static_cast<int>(process.rank));
}

/// Rank 1 handles an exception that destroys its groups; rank 0 waits for it for at most 10 s, on a duplicate of the
/// group. Rank 1 then waits in MPI_Finalize until the same timeout, so a longer timeout only delays the test.
void caught_while_waited_for(int64_t elements, bool by_message = false) {
  const auto process = accelerate::env::read_process_env(accelerate::env::current_variables());
  try {
    const auto group = accelerate::comm::connect(process, {.timeout = 10s}).duplicate();
    group.barrier();
    if (process.rank == 1) throw std::runtime_error("handled");
    by_message ? group.recv(at::ones({elements}), 1) : group.all_reduce(at::ones({elements}));
  } catch (const accelerate::Error& error) {
    report(error);
  } catch (const std::runtime_error&) {
    std::this_thread::sleep_for(2s);
  }
}

/// Rank 1 handles an error of its own group; rank 0 waits for it for a minute, on a duplicate.
void refused_while_waited_for() {
  const auto process = accelerate::env::read_process_env(accelerate::env::current_variables());
  try {
    const auto group = accelerate::comm::connect(process, {.timeout = 60s});
    const auto other = group.duplicate();
    if (process.rank == 0) group.send(at::ones({4}), 1);
    if (process.rank == 1) group.recv(at::ones({3}), 0);
    other.all_reduce(at::ones({4}));
  } catch (const accelerate::Error& error) {
    report(error);
    if (process.rank == 1) std::this_thread::sleep_for(2s);
  }
}

/// Both ranks leave a group through an exception, and the next group is unaffected.
void caught_and_again() {
  const auto process = accelerate::env::read_process_env(accelerate::env::current_variables());
  for (int attempt = 0; attempt < 4; ++attempt) {
    try {
      const auto group = accelerate::comm::connect(process, {.timeout = 60s});
      const auto sum = at::ones({4});
      group.all_reduce(sum);
      if (attempt == 3) std::printf("sum %d\n", sum[0].item<int>());
      if (attempt < 3) throw std::runtime_error("handled");
    } catch (const accelerate::Error& error) {
      report(error);
    } catch (const std::runtime_error&) {
    }
  }
}

/// Rank 0 handles the error of a late rank 1 and exits normally; rank 1 runs no further operation with it.
void handled() {
  const auto process = accelerate::env::read_process_env(accelerate::env::current_variables());
  try {
    const auto group = accelerate::comm::connect(process, {.timeout = 2s});
    if (process.rank == 1) std::this_thread::sleep_for(6s);
    if (process.rank == 0) group.barrier();
  } catch (const accelerate::Error& error) {
    report(error);
  }
  std::printf("rank %d saved\n", static_cast<int>(process.rank));
}

/// Rank 1 crashes between two operations of the first two starts.
void crashes_twice() {
  const auto process = accelerate::env::read_process_env(accelerate::env::current_variables());
  const auto group = accelerate::comm::connect(process, {.timeout = 60s});
  const auto sum = at::ones({4});
  group.all_reduce(sum);
  std::printf("start %d, rank %d, sum %d\n", static_cast<int>(process.restart_count), static_cast<int>(process.rank),
              sum[0].item<int>());
  std::fflush(stdout);
  if (process.restart_count < 2 && process.rank == 1) ::raise(SIGKILL);
  group.all_reduce(sum);
  if (process.rank == 0) std::printf("done: %d\n", sum[0].item<int>());
}

/// A program outside the job connects to the job's store: writes empty values to the keys of such stores.
void strangers_keys() {
  const auto process = accelerate::env::read_process_env(accelerate::env::current_variables());
  const auto until = std::chrono::steady_clock::now() + 3s;
  int written = 0;
  while (std::chrono::steady_clock::now() < until) {
    try {
      c10d::TCPStoreOptions options;
      options.port = static_cast<uint16_t>(process.master_port.value());
      options.timeout = 1s;
      c10d::TCPStore store(*process.master_addr, options);
      for (const std::string before :
           {"", "0/", "default_pg/", "accelerate//0/0/", "accelerate//0/0/world/", "accelerate//0/0/here/"}) {
        for (const std::string key : {"0", "1", "rank_0", "rank_1", "rank/0", "rank/1"}) {
          store.c10d::Store::set(before + key, "");
          ++written;
        }
      }
    } catch (const std::exception&) {  // the ranks have not started, or have ended
    }
    std::this_thread::sleep_for(1ms);
  }
  std::printf("%d keys\n", written);
}

/// Starts as a prepared program does.
void start() { static_cast<void>(accelerate::job::start({.timeout = 2s}, false)); }

/// Scenarios without a group, or that create it themselves.
const std::map<std::string, void (*)()> kWithoutGroup{
    {"meets_only", [] { meets_only(5s); }},
    {"meets_and_dies", [] { meets_only(1s); }},
    {"stays_away", does_not_join},
    {"connects_and_drops", connects_and_drops},
    {"last_dies_connecting", last_dies_connecting},
    {"caught", caught},
    {"caught_while_waited_for", [] { caught_while_waited_for(4); }},
    {"caught_while_waited_for_large", [] { caught_while_waited_for(3'000'000); }},
    {"caught_while_received_from", [] { caught_while_waited_for(4, true); }},
    {"refused_while_waited_for", refused_while_waited_for},
    {"caught_and_again", caught_and_again},
    {"handled", handled},
    {"threads", run_more_threads_than_allowed},
    {"crashes_twice", crashes_twice},
    {"start", start},
    {"strangers_keys", strangers_keys},
};

#if ACCELERATE_HAS_MPI
const std::map<std::string, void (*)()> kBefore{
    {"mpi_gives_less", faults::let_mpi_give_less},
    {"mpi_without_threads", faults::initialise_mpi_without_threads},
    {"mpi_finalized", faults::initialise_and_finalize_mpi},
};
#else
const std::map<std::string, void (*)()> kBefore{};
#endif

/// Scenarios in which no deadline must expire.
const std::set<std::string> kSlow{
    "slow_connect",           "works", "sleeps", "gets_on_alone", "message_of_ended_rank", "message_to_ended_rank",
    "operation_of_ended_rank"};

void run(const std::string& scenario) {
  if (const auto alone = kWithoutGroup.find(scenario); alone != kWithoutGroup.end()) return alone->second();
  const auto before = kBefore.find(scenario);
  if (before != kBefore.end()) before->second();
  const auto process = accelerate::env::read_process_env(accelerate::env::current_variables());
  const bool slow = kSlow.contains(scenario) || scenario.ends_with("_of_many") || scenario.ends_with("_dies");
  const auto group =
      accelerate::comm::connect(process, {.timeout = slow ? 60s : 2s, .debug = scenario.rfind("debug", 0) == 0});
  if (before == kBefore.end()) kScenarios.at(scenario)(group);
}

}  // namespace

int main(int, char** argv) {
  try {
    run(argv[1]);
  } catch (const accelerate::Error& error) {
    report(error);
    return 3;
  }
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// Ranks as threads that connect to a store, and their errors if they cannot.
#include "accelerate/comm/rendezvous/store.hpp"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "accelerate/comm/rendezvous/interfaces.hpp"
#include "accelerate/comm/rendezvous/sockets.hpp"
#include "accelerate/comm/rendezvous/store_peer_diagnosis.hpp"
#include "accelerate/comm/threads/backend.hpp"
#include "tests/testing.hpp"

namespace {

using namespace accelerate::comm;
using namespace std::chrono_literals;
using accelerate::RankContext;
using accelerate::env::ProcessEnv;

ProcessEnv process_of(int64_t rank, int64_t world_size, int64_t port, const std::string& address = "127.0.0.1") {
  return {.rank = rank,
          .world_size = world_size,
          .local_rank = rank,
          .local_world_size = world_size,
          .master_addr = address,
          .master_port = port};
}

RankContext place_of(const ProcessEnv& process) { return {process.rank, process.world_size, "gpu-a"}; }

/// The rank's error text, or "" if it joined the others.
std::string refusal(const ProcessEnv& process, std::chrono::milliseconds timeout = 300ms) {
  try {
    static_cast<void>(rendezvous_store(process, place_of(process), timeout));
  } catch (const accelerate::Error& error) {
    return fmt::format("{}: {}", error_kind_name(error.kind()), error.what());
  }
  return "";
}

int64_t free_port() { return port_of(listen_on({"127.0.0.1", 0}, {})); }

/// A store like that of torchrun's agent, on a free port.
c10::intrusive_ptr<c10d::TCPStore> agent_store() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

void wait_until(const std::function<bool()>& done) {
  const auto until = std::chrono::steady_clock::now() + 60s;
  while (!done() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(5ms);
  REQUIRE(done());
}

bool listens_on(const std::string& host, int64_t port) {
  return is_port_open(resolve_endpoint({host, port}, {}), std::chrono::steady_clock::now() + 5s);
}

/// Accepts no connection: its queue is full and never read.
class Swallowing {
 public:
  Swallowing() : listening_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(listening_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    REQUIRE(::listen(listening_.get(), 0) == 0);
    address.sin_port = htons(static_cast<uint16_t>(port()));
    for (int i = 0; i < 3; ++i) {
      waiting_.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
      ::connect(waiting_.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
    }
  }
  [[nodiscard]] int64_t port() const { return port_of(listening_); }

 private:
  FileDescriptor listening_;
  std::vector<FileDescriptor> waiting_;
};

/// Behaves like a store in a frozen process: it receives requests and never answers.
class NeverAnswers : public c10d::HashStore {
 public:
  using c10d::HashStore::set;
  void set(const std::string&, const std::vector<uint8_t>&) override {
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return end_; });
    throw std::runtime_error("ended");
  }
  void end() {
    const std::lock_guard lock(mutex_);
    end_ = true;
    ended_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
};

/// Accepts connections and closes them without a reply.
class Silent {
 public:
  Silent() : listening_(listen_on({"127.0.0.1", 0}, {})), thread_([this] { loop(); }) {}
  Silent(const Silent&) = delete;
  Silent& operator=(const Silent&) = delete;
  ~Silent() {
    stop_ = true;
    thread_.join();
  }
  [[nodiscard]] int64_t port() const { return port_of(listening_); }

 private:
  void loop() {
    while (!stop_) {
      pollfd come{.fd = listening_.get(), .events = POLLIN, .revents = 0};
      if (::poll(&come, 1, 20) > 0) ::close(::accept(listening_.get(), nullptr, nullptr));
    }
  }

  FileDescriptor listening_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace

TEST_CASE("missing ranks are named") {
  CHECK(refusal(process_of(0, 2, free_port())) ==
        "peer: [rank 0 of 2, gpu-a] connect: waited 0.3 s for rank 1, which did not join");
  CHECK(refusal(process_of(0, 3, free_port())) ==
        "peer: [rank 0 of 3, gpu-a] connect: waited 0.3 s for ranks 1, 2, which did not join");
}

TEST_CASE("a rank that waits for rank 0 does not block it, although both are threads of one process") {
  const int64_t port = free_port();
  std::string second;
  std::thread waiting([&] { second = refusal(process_of(1, 2, port), 20s); });
  std::this_thread::sleep_for(300ms);  // rank 1 has connected to the port by then
  CHECK(refusal(process_of(0, 2, port), 20s).empty());
  waiting.join();
  CHECK(second.empty());
}

TEST_CASE("a machine that drops every connection is reported after the timeout") {
  const Swallowing rank_0;
  const auto begun = std::chrono::steady_clock::now();
  CHECK(refusal(process_of(1, 2, rank_0.port())) ==
        fmt::format("peer: [rank 1 of 2, gpu-a] connect: waited 0.3 s for rank 0 at 127.0.0.1:{}, it did not join; "
                    "start it, or check MASTER_ADDR and MASTER_PORT",
                    rank_0.port()));
  CHECK(std::chrono::steady_clock::now() - begun < 10s);
}

TEST_CASE("a program on the port that is not a store is reported") {
  const Silent other;
  CHECK(refusal(process_of(1, 2, other.port())) ==
        fmt::format("peer: [rank 1 of 2, gpu-a] connect: what answers at 127.0.0.1:{} is not the store of rank 0 of "
                    "this job",
                    other.port()));
}

TEST_CASE("a silent process on the port takes no longer than the timeout") {
  const FileDescriptor holder = listen_on({"127.0.0.1", 0}, {});  // the kernel accepts connections for it
  const auto begun = std::chrono::steady_clock::now();
  CHECK(refusal(process_of(1, 2, port_of(holder))) ==
        fmt::format("peer: [rank 1 of 2, gpu-a] connect: waited 0.3 s for the job's store at 127.0.0.1:{}, which "
                    "accepts connections but does not answer: rank 0 hangs, or another program holds the port",
                    port_of(holder)));
  CHECK(std::chrono::steady_clock::now() - begun < 10s);
}

TEST_CASE("ranks of two jobs on one port do not connect to each other") {
  const auto store = agent_store();  // store of another program
  const auto not_ours = fmt::format(
      "peer: [rank 1 of 2, gpu-a] connect: what answers at 127.0.0.1:{} is not the store of rank 0 of this job",
      store->getPort());
  auto rank_1 = process_of(1, 2, store->getPort());
  rank_1.job_id = "ours";
  CHECK(refusal(rank_1) == not_ours);
  store->c10d::Store::set("accelerate/job", "theirs");
  CHECK(refusal(rank_1) == not_ours);
  CHECK_FALSE(store->check({"accelerate/ours/0/0/here/1"}));

  // torchrun's agents write no owner; the job id separates the keys.
  auto theirs = process_of(0, 2, store->getPort());
  theirs.agent_store = rank_1.agent_store = true;
  theirs.job_id = "theirs";
  CHECK(refusal(theirs) == "peer: [rank 0 of 2, gpu-a] connect: waited 0.3 s for rank 1, which did not join");
  CHECK(refusal(rank_1) == "peer: [rank 1 of 2, gpu-a] connect: waited 0.3 s for rank 0, which did not join");
}

TEST_CASE("without a job id a second process with the same rank is refused") {
  const auto store = agent_store();
  store->c10d::Store::set("accelerate/job", "");
  store->add("accelerate//0/0/here/1", 1);
  CHECK(refusal(process_of(1, 2, store->getPort())) ==
        fmt::format("peer: [rank 1 of 2, gpu-a] connect: another process already joined at 127.0.0.1:{} as rank 1; "
                    "give each job its own port (MASTER_PORT), and the ranks of one job an ACCELERATE_JOB_ID that no "
                    "other job has",
                    store->getPort()));
}

TEST_CASE("a peer diagnosis ends without a response from the store, and reports whether the store is gone") {
  const auto begun = std::chrono::steady_clock::now();
  const auto store = c10::make_intrusive<NeverAnswers>();
  CHECK(diagnose_peers_over_store({store, "gpu-a:29500", "rank 0"}, "world", {}, 1, {0, 1}).text ==
        "the job's store at gpu-a:29500, which rank 0 keeps, does not answer.");
  auto agents = agent_store();
  c10d::TCPStoreOptions options;
  options.port = agents->getPort();
  options.waitWorkers = false;
  const auto client = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  agents.reset();
  CHECK(diagnose_peers_over_store({client, "gpu-a:29500", "torchrun's agent beside rank 0"}, "world", {}, 1, {0, 1})
            .text == "the job's store at gpu-a:29500, which torchrun's agent beside rank 0 keeps, is gone.");
  CHECK(std::chrono::steady_clock::now() - begun < 30s);
  store->end();
}

TEST_CASE("ranks report a store that closes while they wait") {
  for (const bool agent : {false, true}) {
    auto store = agent_store();
    store->c10d::Store::set("accelerate/job", "");  // as at the start of rank 0
    const int64_t port = store->getPort();
    auto process = process_of(1, 3, port);
    process.agent_store = agent;
    std::string message;
    std::thread rank_1([&] { message = refusal(process, 100s); });
    wait_until([&] { return store->check({"accelerate//0/0/here/1"}); });
    const auto begun = std::chrono::steady_clock::now();
    store.reset();
    rank_1.join();
    CHECK(std::chrono::steady_clock::now() - begun < 30s);
    CAPTURE(message);
    CHECK(
        message.starts_with(fmt::format("peer: [rank 1 of 3, gpu-a] connect: the connection to the job's store at "
                                        "127.0.0.1:{} was lost after ",
                                        port)));
    CHECK(message.ends_with(
        fmt::format(" s: {} probably ended; look at its output", agent ? "torchrun's agent" : "rank 0")));
  }
}

TEST_CASE("the store listens on MASTER_ADDR only") {
  const int64_t port = free_port();
  std::string message;
  std::thread rank_0([&] { message = refusal(process_of(0, 2, port), 60s); });
  wait_until([&] { return listens_on("127.0.0.1", port); });
  CHECK_FALSE(listens_on("127.0.0.2", port));
  CHECK(refusal(process_of(1, 2, port), 60s).empty());
  rank_0.join();
  CHECK(message.empty());
}

TEST_CASE("a restarted job ignores keys of earlier attempts in the agent's store") {
  const auto store = agent_store();
  const auto generation = [&](int64_t restarts, int64_t rank, const std::string& host) {
    auto process = process_of(rank, 2, store->getPort(), host);
    process.agent_store = true;
    process.restart_count = restarts;
    return process;
  };
  std::string message;
  std::thread rank_0([&] { message = refusal(generation(0, 0, "127.0.0.1"), 60s); });
  CHECK(refusal(generation(0, 1, "127.0.0.1"), 60s).empty());
  rank_0.join();
  CHECK(message.empty());
  // Other spellings of the address simulate other processes: each counts its connections from 0.
  CHECK(refusal(generation(0, 0, "127.1")).empty());
  CHECK(refusal(generation(1, 0, "127.0.1")) ==
        "peer: [rank 0 of 2, gpu-a] connect: waited 0.3 s for rank 1, which did not join");
}

TEST_CASE("a missing address or port, and a loopback name on rank 0's machine, are reported") {
  auto process = process_of(0, 2, 29'500);
  process.master_port = std::nullopt;
  CHECK(refusal(process) ==
        "environment: [rank 0 of 2, gpu-a] connect: MASTER_PORT is not set, must be a free port of rank 0's machine, "
        "the same on all ranks");
  process = process_of(0, 2, free_port(), "127.2");
  process.local_world_size = 1;
  CHECK(refusal(process) ==
        "environment: [rank 0 of 2, gpu-a] connect: MASTER_ADDR is '127.2', which is 127.0.0.2 on rank 0's machine, "
        "which other machines cannot reach; set it to the address at which they reach it");
  process.master_addr = std::nullopt;
  CHECK(refusal(process) ==
        "environment: [rank 0 of 2, gpu-a] connect: MASTER_ADDR is not set, and the job spans machines; set it to the "
        "address of rank 0's");
}

namespace {

/// Address of rank 0 of two if only a backend connects the ranks; both use the store.
std::string meeting_place(int64_t local_world_size) {
  const ThreadsWorld world(2);
  std::array<c10::intrusive_ptr<c10d::Store>, 2> stores;
  const auto rank_main = [&](int64_t rank) {
    const ProcessEnv process{.rank = rank, .world_size = 2, .local_rank = 0, .local_world_size = local_world_size};
    const auto connection = world.connection(rank);
    stores.at(static_cast<size_t>(rank)) = rendezvous_store_over(*connection->backend, process, place_of(process), 60s);
  };
  std::thread rank_1(rank_main, 1);
  rank_main(0);
  rank_1.join();
  stores[0]->set("key", "value");
  CHECK(stores[1]->get_to_str("key") == "value");
  return dynamic_cast<const c10d::TCPStore&>(*stores[1]).getHost();
}

}  // namespace

TEST_CASE("without MASTER_ADDR one machine uses loopback, several use an address that others can reach") {
  CHECK(meeting_place(2) == "127.0.0.1");
  const auto here = interfaces();
  const bool networked = std::any_of(here.begin(), here.end(), [](const Interface& each) {
    return !each.loopback && !each.address.starts_with("fe80:");
  });
  if (networked)
    CHECK(meeting_place(1) ==
          address_for_others(addresses_of_own_name(std::chrono::steady_clock::now() + 10s), here, {}));
}

// SPDX-License-Identifier: Apache-2.0
// Real processes that die, stay away or disagree: what their peers are told, word for word.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "accelerate/base/error.hpp"

namespace {

struct Ended {
  int code = 0;
  std::string out{};
  std::string err{};
};

std::string read_file(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// A listening socket on 127.0.0.1 and its port.
class Listener {
 public:
  Listener() : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof(address);
    REQUIRE(::bind(fd_, reinterpret_cast<sockaddr*>(&address), length) == 0);
    REQUIRE(::listen(fd_, 8) == 0);
    ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() { ::close(fd_); }
  [[nodiscard]] int port() const { return port_; }

 private:
  int fd_;
  int port_ = 0;
};

int free_port() { return Listener().port(); }

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "faults-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Runs command lines side by side, each at most 60 s.
std::vector<Ended> run(const std::vector<std::string>& commands) {
  const Folder folder;
  std::string script = "unset ACCELERATE_BACKEND RANK WORLD_SIZE GLOO_SOCKET_IFNAME; ";
  for (size_t i = 0; i < commands.size(); ++i) {
    const auto file = (folder.path() / std::to_string(i)).string();
    script += fmt::format("(timeout -k 5 60 {} >{}.out 2>{}.err; echo $? >{}.code) & ", commands[i], file, file, file);
  }
  REQUIRE(std::system((script + "wait").c_str()) == 0);
  std::vector<Ended> all;
  for (size_t i = 0; i < commands.size(); ++i) {
    const auto file = (folder.path() / std::to_string(i)).string();
    all.push_back({std::stoi(read_file(file + ".code")), read_file(file + ".out"), read_file(file + ".err")});
  }
  return all;
}

/// extra   variables that come last, so they win
std::string rank_command(int rank, int world, int port, const std::string& scenario,
                         const std::string& address = "127.0.0.1", const std::string& extra = "") {
  return fmt::format(
      "env RANK={} WORLD_SIZE={} LOCAL_RANK={} LOCAL_WORLD_SIZE={} MASTER_ADDR={} MASTER_PORT={} "
      "ACCELERATE_BACKEND=gloo {} {} {}",
      rank, world, rank, world, address, port, extra, FAULT_RANKS, scenario);
}

/// Both ranks of a gloo job of two.
[[maybe_unused]] std::vector<Ended> run_gloo(const std::string& scenario, int port,
                                             const std::string& address = "127.0.0.1") {
  return run({rank_command(0, 2, port, scenario, address), rank_command(1, 2, port, scenario, address)});
}
[[maybe_unused]] std::vector<Ended> run_gloo(const std::string& scenario) { return run_gloo(scenario, free_port()); }

std::string at_rank(int rank, const std::string& text) {
  return fmt::format("peer: [rank {} of 2, {}] {}\n", rank, accelerate::base::host_name(), text);
}

/// What rank 0 is told by the scenario "late_to_all", one line for each way to wait for rank 1.
[[maybe_unused]] void check_all_name_rank_1(const std::string& out, const std::string& end) {
  const std::vector<std::pair<std::string, std::string>> waits{
      {"all_gather", "all_gather: waited 2 s in operation 1 ([2] float32)"},
      {"all_gather_async", "all_gather: waited 2 s in operation 1 ([2] float32)"},
      {"all_gather_bytes", "all_gather: waited 2 s in operation 1 ([5] uint8)"},
      {"all_to_all", "all_to_all: waited 2 s in operation 1 (no tensor)"},
      {"broadcast", "broadcast: waited 2 s in operation 1 ([2] float32)"},
      {"broadcast_bytes", "broadcast: waited 2 s in operation 1 ([1] int64)"},
      {"duplicate", "duplicate: waited 2 s in operation 1 (no tensor)"},
      {"gather", "gather: waited 2 s in operation 1 ([2] float32)"},
      {"reduce", "reduce: waited 2 s in operation 1 ([2] float32)"},
      {"reduce_scatter", "reduce_scatter: waited 2 s in operation 1 ([4] float32)"},
      {"scatter", "scatter: waited 2 s in operation 1 (no tensor)"},
      {"send", "send: waited 2 s in a message ([3000000] float32)"},
      {"split", "split: waited 2 s in operation 1 (no tensor)"}};
  CAPTURE(out);
  for (const auto& [name, text] : waits) {
    const auto line = fmt::format("{}> [rank 0 of 2, {}] {}; ", name, accelerate::base::host_name(), text);
    CAPTURE(line);
    const bool one_of_both =
        out.find(line + end) != std::string::npos || out.find(line + "rank 1 has not come.\n") != std::string::npos;
    CHECK(one_of_both);
  }
}

/// No backtrace, no retry noise: the error says what there is to say.
[[maybe_unused]] void check_quiet(const Ended& rank) {
  CAPTURE(rank.err);
  CHECK(rank.err.find("frame #") == std::string::npos);
  CHECK(rank.err.find("[W") == std::string::npos);
  CHECK(rank.err.find("[E") == std::string::npos);
  CHECK(rank.out.find("gloo/") == std::string::npos);
}

/// What the ranks are told in debug mode of an operation that rank 1 alone calls: between two steps with a barrier, and
/// before the last.
[[maybe_unused]] const std::string kBarrierBesideExtra =
    "barrier: this rank calls barrier (no tensor), rank 1 calls all_reduce ([2] float32); all ranks must call the same "
    "operations in the same order.";
[[maybe_unused]] const std::string kExtraBesideBarrier =
    "all_reduce: this rank calls all_reduce ([2] float32), rank 0 calls barrier (no tensor); all ranks must call the "
    "same operations in the same order.";
[[maybe_unused]] const std::string kStepBesideExtra =
    "all_reduce: this rank calls all_reduce ([6] float32) on a duplicate of the group, rank 1 calls all_reduce ([2] "
    "float32); all ranks must call the same operations in the same order.";
[[maybe_unused]] const std::string kExtraBesideStep =
    "all_reduce: this rank calls all_reduce ([2] float32), rank 0 calls all_reduce ([6] float32) on a duplicate of the "
    "group; all ranks must call the same operations in the same order.";

}  // namespace

#if ACCELERATE_HAS_GLOO

TEST_CASE("gloo: a rank that does not come to an operation is named after the timeout") {
  const auto ranks = run_gloo("late");
  const std::string why = "waited 2 s in operation 1 ([4] float32); nothing was heard from rank 1.";
  CHECK(ranks[0].out == at_rank(0, "all_reduce: " + why) +
                            at_rank(0, "barrier: this group is broken since operation 1 (all_reduce): " + why));
  CHECK(ranks[0].code == 3);
  check_quiet(ranks[0]);
}

TEST_CASE("gloo: whatever is waited for, the missing rank is named") {
  check_all_name_rank_1(run_gloo("late_to_all")[0].out, "nothing was heard from rank 1.\n");
  const int port = free_port(), other_port = free_port();
  const auto ranks =
      run({rank_command(0, 2, port, "late_barrier"), rank_command(1, 2, port, "late_barrier"),
           rank_command(0, 2, other_port, "late_message"), rank_command(1, 2, other_port, "late_message")});
  CHECK(ranks[0].out == at_rank(0, "barrier: waited 2 s in operation 1 (no tensor); nothing was heard from rank 1."));
  CHECK(ranks[2].out == at_rank(0, "recv: waited 2 s in a message ([2] float32); nothing was heard from rank 1."));
}

TEST_CASE("gloo: rows of a reduction know a deadline of their own, and what follows a failure says which it was") {
  CHECK(run_gloo("rows_late")[0].out ==
        at_rank(0, "reduce_scatter: waited 0.5 s in operation 1 ([4] float32); nothing was heard from rank 1."));
  const std::string why = "waited 0.5 s in operation 1 ([2] float32); nothing was heard from rank 1.";
  CHECK(run_gloo("late_and_next")[0].out ==
        at_rank(0, "all_reduce: " + why) +
            at_rank(0, "all_reduce: this group is broken since operation 1 (all_reduce): " + why));
}

TEST_CASE("gloo: junk on the job's port disturbs nothing, not the meeting of the ranks and not what they do later") {
  const int port = free_port();
  const std::string junk = fmt::format(
      R"(bash -c 'address=/dev/tcp/127.0.0.1/{}; until (: < $address) 2> /dev/null; do sleep 0.05; done; )"
      R"(for i in {{1..40}}; do head -c $((i * 300)) /dev/urandom > $address && head -c 3 /dev/zero > $address && )"
      R"(printf "GET / HTTP/1.1\r\nHost: a\r\n\r\n" > $address && exec {{half_open}}<> $address && echo thrown; )"
      R"(sleep 0.1; done')",
      port);
  const auto ranks = run({rank_command(0, 2, port, "works"),
                          fmt::format("sh -c 'sleep 1; exec {}'", rank_command(1, 2, port, "works")), junk});
  for (size_t rank = 0; rank < 2; ++rank) {
    CAPTURE(ranks[rank].err);
    CHECK(ranks[rank].code == 0);
    CHECK(ranks[rank].out == "40 steps\n");
  }
  const auto thrown = std::count(ranks[2].out.begin(), ranks[2].out.end(), '\n');
  MESSAGE(thrown << " times junk of four kinds");
  CHECK(thrown >= 20);
}

TEST_CASE("gloo: a stranger who writes empty addresses into the store reaches no rank of a job with an id") {
  const int port = free_port();
  const std::string id = "ACCELERATE_JOB_ID=ours";
  const auto ranks = run({rank_command(0, 2, port, "works", "127.0.0.1", id),
                          fmt::format("sh -c 'sleep 1; exec {}'", rank_command(1, 2, port, "works", "127.0.0.1", id)),
                          rank_command(0, 1, port, "strangers_keys")});
  for (size_t rank = 0; rank < 2; ++rank) {
    CAPTURE(ranks[rank].err);
    CHECK(ranks[rank].code == 0);
    CHECK(ranks[rank].out == "40 steps\n");
  }
  CHECK(ranks[2].out != "0 keys\n");
}

TEST_CASE("gloo: a rank that died is named at once") {
  const auto ranks = run_gloo("rank_1_dies");
  CHECK(ranks[0].out == at_rank(0,
                                "all_reduce: operation 2 ([4] float32) lost the connection to a peer; "
                                "nothing was heard from rank 1."));
  CHECK(ranks[0].code == 3);
  CHECK(ranks[1].code == 7);
  check_quiet(ranks[0]);
}

TEST_CASE("gloo: when rank 0 dies the others are told") {
  const int port = free_port();
  const auto ranks = run_gloo("rank_0_dies", port);
  CHECK(ranks[1].out == at_rank(1, fmt::format("all_reduce: operation 2 ([4] float32) lost the connection to a peer; "
                                               "the job's store at 127.0.0.1:{}, which rank 0 keeps, is gone.",
                                               port)));
  CHECK(ranks[1].code == 3);
  check_quiet(ranks[1]);
}

TEST_CASE("gloo: when rank 0 is frozen the others are told after the timeout") {
  const int port = free_port();
  const auto ranks = run_gloo("rank_0_freezes", port);
  CHECK(ranks[1].out == at_rank(1, fmt::format("all_reduce: waited 2 s in operation 2 ([4] float32); the job's store "
                                               "at 127.0.0.1:{}, which rank 0 keeps, does not answer.",
                                               port)));
  CHECK(ranks[1].code == 3);
  check_quiet(ranks[1]);
}

TEST_CASE("gloo: a name server that does not answer costs the timeout and no more") {
  const auto ranks = run({rank_command(1, 2, free_port(), "connect", "unanswered.example")});
  CHECK(ranks[0].out ==
        fmt::format("environment: [rank 1 of 2, {}] connect: MASTER_ADDR is 'unanswered.example', which cannot be "
                    "resolved: no answer within 2.0 s\n",
                    accelerate::base::host_name()));
  CHECK(ranks[0].code == 3);
}

TEST_CASE("gloo: a rank that never came to the meeting is named") {
  const auto ranks = run({rank_command(0, 2, free_port(), "connect")});
  CHECK(ranks[0].out == at_rank(0, "connect: waited 2 s for rank 1, it has not come"));
  CHECK(ranks[0].code == 3);
  check_quiet(ranks[0]);
}

TEST_CASE("gloo: rank 0 gives up first, and the others still see who never came") {
  const int port = free_port();
  const auto ranks = run({rank_command(0, 3, port, "connect"),
                          fmt::format("sh -c 'sleep 0.3; exec {}'", rank_command(1, 3, port, "connect"))});
  for (const int rank : {0, 1}) {
    CHECK(ranks[static_cast<size_t>(rank)].out ==
          fmt::format("peer: [rank {} of 3, {}] connect: waited 2 s for rank 2, it has not come\n", rank,
                      accelerate::base::host_name()));
  }
}

TEST_CASE("gloo: when rank 0 never came its address is named") {
  const int port = free_port();
  const auto ranks = run({rank_command(1, 2, port, "connect")});
  CHECK(ranks[0].out == at_rank(1, fmt::format("connect: waited 2 s for rank 0 at 127.0.0.1:{}, it has not come; "
                                               "start it, or check MASTER_ADDR and MASTER_PORT",
                                               port)));
  check_quiet(ranks[0]);
}

TEST_CASE("gloo: a second job on the same port is told so") {
  const Listener other_job;
  const auto ranks =
      run({rank_command(0, 2, other_job.port(), "connect"), rank_command(1, 2, other_job.port(), "connect")});
  CHECK(ranks[0].out ==
        fmt::format("environment: [rank 0 of 2, {}] connect: 127.0.0.1:{} is taken, by another job perhaps; give each "
                    "job a port of its own (MASTER_PORT, --main_process_port)\n",
                    accelerate::base::host_name(), other_job.port()));
  check_quiet(ranks[0]);
  check_quiet(ranks[1]);
}

TEST_CASE("gloo: an address of another machine, no address that resolves, and no port are refused") {
  const auto error = [](const std::string& text) {
    return fmt::format("environment: [rank 0 of 2, {}] connect: {}\n", accelerate::base::host_name(), text);
  };
  const auto ranks =
      run({rank_command(0, 2, free_port(), "connect", "203.0.113.7"),
           rank_command(0, 2, free_port(), "connect", "no.such.host.invalid"), rank_command(0, 2, 0, "connect")});
  CHECK(ranks[0].out == error("MASTER_ADDR is 203.0.113.7, which is not an address of this machine; it must name the "
                              "machine of rank 0"));
  CHECK(ranks[1].out.find("connect: MASTER_ADDR is 'no.such.host.invalid', which cannot be resolved: ") !=
        std::string::npos);
  CHECK(ranks[2].out == error("MASTER_PORT is 0, must be a free port of rank 0's machine, the same on all ranks"));
}

TEST_CASE("gloo: an interface that is not there is told with those that are") {
  const std::string text = fmt::format(
      "environment: [rank 0 of 2, {}] connect: GLOO_SOCKET_IFNAME is 'nosuch0', and 'nosuch0' is no network interface "
      "of this machine that is up and has an address; there are: lo",
      accelerate::base::host_name());
  const int port = free_port();
  const auto on = [&](int rank, const std::string& name) {
    return rank_command(rank, 2, port, "connect", "127.0.0.1", "GLOO_SOCKET_IFNAME=" + name);
  };
  auto ranks = run({on(0, "nosuch0"), on(1, "nosuch0")});
  CHECK(ranks[0].out.starts_with(text));
  CHECK(ranks[0].code == 3);
  check_quiet(ranks[0]);
  ranks = run({on(0, "lo"), on(1, "lo")});
  CHECK(ranks[0].out.empty());
  CHECK(ranks[0].code == 0);
}

TEST_CASE("gloo: a rank that came to the meeting and not to gloo is waited for, and named") {
  const int port = free_port();
  const auto ranks = run({rank_command(0, 2, port, "connect"), rank_command(1, 2, port, "meets_only")});
  CHECK(ranks[0].out == at_rank(0, "connect: gloo could not connect the 2 ranks within 2 s; rank 1 has not come"));
  check_quiet(ranks[0]);
}

TEST_CASE("gloo: a store that ends while gloo connects is no timeout") {
  const int port = free_port();
  const auto ranks = run({rank_command(0, 2, port, "meets_and_dies"), rank_command(1, 2, port, "slow_connect")});
  CAPTURE(ranks[1].out);
  CHECK(ranks[1].out.starts_with(
      fmt::format("peer: [rank 1 of 2, {}] connect: gloo could not connect the 2 ranks, it failed after ",
                  accelerate::base::host_name())));
  CHECK(ranks[1].out.find("[enforce fail") == std::string::npos);
  CHECK(ranks[1].code == 3);
  check_quiet(ranks[1]);
}

TEST_CASE("gloo: ranks meet over IPv6") {
  for (const auto& rank : run_gloo("connect", free_port(), "::1")) {
    CAPTURE(rank.out);
    CHECK(rank.code == 0);
  }
}

TEST_CASE("gloo: trailing dimensions that differ are told on every rank") {
  const auto ranks = run_gloo("ragged");
  CHECK(ranks[0].out == at_rank(0,
                                "all_gather: this rank sends [64, 10] float32, rank 1 sends [64, 12] float32; "
                                "only the first dimension may differ."));
  CHECK(ranks[1].out == at_rank(1,
                                "all_gather: this rank sends [64, 12] float32, rank 0 sends [64, 10] float32; "
                                "only the first dimension may differ."));
}

TEST_CASE("gloo: sizes that differ end the process in our words, with the rank and the remedy") {
  const auto ranks = run_gloo("shapes");
  const std::string text =
      "gloo: the ranks give tensors of different sizes to one operation, and gloo ends the process for that; with "
      "ACCELERATE_DEBUG_MODE=1 (accelerate_launch --debug) every rank says which call it is\n";
  bool told = false;
  for (int rank : {0, 1}) {
    const auto& ended = ranks[static_cast<size_t>(rank)];
    CAPTURE(ended.err);
    CAPTURE(ended.out);
    CHECK((ended.code == 1 || ended.code == 3));  // the one that gloo ends, and the one that loses it
    told = told || ended.err == fmt::format("[rank {} of 2, {}] {}", rank, accelerate::base::host_name(), text);
  }
  CHECK(told);
}

TEST_CASE("gloo, debug: shapes, dtypes, reductions, roots, operations and messages that differ are told") {
  auto ranks = run_gloo("debug_shapes");
  CHECK(ranks[0].out ==
        at_rank(0, "all_reduce: this rank sends [4] float32, rank 1 sends [5] float32; they must be equal."));
  CHECK(ranks[1].out ==
        at_rank(1, "all_reduce: this rank sends [5] float32, rank 0 sends [4] float32; they must be equal."));
  ranks = run_gloo("debug_dtypes");
  CHECK(ranks[0].out ==
        at_rank(0, "all_reduce: this rank sends [4] float32, rank 1 sends [4] int32; they must be equal."));
  ranks = run_gloo("debug_reductions");
  CHECK(ranks[0].out == at_rank(0, "all_reduce: this rank's reduction is sum, rank 1's is max; they must be equal."));
  ranks = run_gloo("debug_roots");
  CHECK(ranks[0].out == at_rank(0, "broadcast: this rank's root is 0, rank 1's is 1; they must be equal."));
  ranks = run_gloo("debug_operations");
  CHECK(ranks[0].out == at_rank(0,
                                "barrier: operation 2 of this rank is barrier, rank 1's operation 2 is broadcast; all "
                                "ranks must call the same operations in the same order."));
  ranks = run_gloo("debug_extra");
  CHECK(ranks[0].out == at_rank(0, kBarrierBesideExtra));
  CHECK(ranks[1].out == at_rank(1, kExtraBesideBarrier));
  ranks = run_gloo("debug_extra_last");
  CHECK(ranks[0].out == at_rank(0, kStepBesideExtra));
  ranks = run_gloo("debug_messages");
  CHECK(ranks[1].out ==
        at_rank(1, "recv: this rank expects [3] float32, rank 0 sends [4] float32; they must be equal."));
}

#endif

#if ACCELERATE_HAS_MPI

namespace {

std::vector<Ended> run_mpi(const std::string& scenario, int ranks = 2) {
  return run({fmt::format("{} --cpu --num_processes {} --backend mpi {} {}", ACCELERATE_LAUNCH, ranks, FAULT_RANKS,
                          scenario)});
}

/// Each of two ranks is told its text; the launcher may stop one before it has said so.
void check_one_is_told(const std::string& scenario, const std::string& of_0, const std::string& of_1) {
  const auto out = run_mpi(scenario)[0].out;
  CAPTURE(out);
  CHECK((out.find(at_rank(0, of_0)) != std::string::npos || out.find(at_rank(1, of_1)) != std::string::npos));
}

}  // namespace

TEST_CASE("mpi: a rank that does not come breaks the group after the timeout, and the program ends with its own code") {
  for (const auto& [scenario, elements] : {std::pair("late", 4), std::pair("late_large", 3'000'000)}) {
    const auto job = run_mpi(scenario);
    CAPTURE(job[0].out);
    const auto why = fmt::format("waited 2 s in operation 1 ([{}] float32); rank 1 has not come.", elements);
    CHECK(job[0].out.find(at_rank(0, "all_reduce: " + why)) != std::string::npos);
    CHECK(job[0].out.find(at_rank(0, "barrier: this group is broken since operation 1 (all_reduce): " + why)) !=
          std::string::npos);
    CHECK(job[0].code == 3);
    CHECK(job[0].out.find("slept to the end") == std::string::npos);
  }
}

TEST_CASE("mpi: whatever is waited for, the missing rank is named") {
  const auto told = [](const std::string& scenario) { return run_mpi(scenario)[0].out; };
  const auto contains = [](const std::string& out, const std::string& text) {
    CAPTURE(out);
    CHECK(out.find(at_rank(0, text)) != std::string::npos);
  };
  check_all_name_rank_1(told("late_to_all"), "rank 1 has not come.\n");
  contains(told("late_barrier"), "barrier: waited 2 s in operation 1 (no tensor); rank 1 has not come.");
  contains(told("late_second"), "all_reduce: waited 0.5 s in operation 2 ([3] float32); rank 1 has not come.");
  contains(told("late_message"), "recv: waited 2 s in a message ([2] float32); rank 1 has not come.");
  const auto out = told("stops");
  CAPTURE(out);
  CHECK(out.find("all_reduce: waited 2 s in operation 1 ([100000000] float32); ") != std::string::npos);
  const bool in_the_middle = out.find("nothing was heard from rank 1.") != std::string::npos;
  CHECK((in_the_middle || out.find("rank 1 has not come.") != std::string::npos));
}

TEST_CASE("mpi: what is under way when another operation fails is told of that one") {
  const auto out = run_mpi("late_and_next")[0].out;
  CAPTURE(out);
  const std::string why = "waited 0.5 s in operation 1 ([2] float32); rank 1 has not come.";
  CHECK(out.find(at_rank(0, "all_reduce: " + why) +
                 at_rank(0, "all_reduce: this group is broken since operation 1 (all_reduce): " + why)) !=
        std::string::npos);
}

TEST_CASE("mpi: so it is among nine ranks, whose sums are MPI's own") {
  const auto told = [](const std::string& scenario, const std::string& text) {
    const auto job = run_mpi(scenario, 9);
    CAPTURE(job[0].out);
    CAPTURE(job[0].err);
    CHECK(job[0].code == 3);
    bool by_any = false;
    for (int rank = 0; rank < 9; ++rank) {
      const auto line = fmt::format("peer: [rank {} of 9, {}] {}\n", rank, accelerate::base::host_name(), text);
      by_any = by_any || job[0].out.find(line) != std::string::npos;
    }
    CHECK(by_any);
  };
  told("late_of_many", "all_reduce: waited 2 s in operation 2 ([2000000] float32); rank 1 has not come.");
  told("stops_of_many", "all_reduce: waited 2 s in operation 2 ([20000000] float32); nothing was heard from rank 1.");
}

TEST_CASE("mpi: calls that differ are told on every rank, without debug mode") {
  const auto check = check_one_is_told;
  const auto both = [&](const std::string& scenario, const std::string& head, const std::string& zero,
                        const std::string& one, const std::string& middle, const std::string& end) {
    check(scenario, fmt::format("{}{}{} {}{}", head, zero, fmt::format(fmt::runtime(middle), 1), one, end),
          fmt::format("{}{}{} {}{}", head, one, fmt::format(fmt::runtime(middle), 0), zero, end));
  };
  both("shapes", "all_reduce: this rank sends ", "[4] float32", "[5] float32", ", rank {} sends",
       "; they must be equal.");
  both("dtypes", "all_reduce: this rank sends ", "[4] float32", "[4] int32", ", rank {} sends",
       "; they must be equal.");
  // Too large to ride along with the comparison.
  both("shapes_large", "all_reduce: this rank sends ", "[3000000] float32", "[3000001] float32", ", rank {} sends",
       "; they must be equal.");
  both("dtypes_large", "all_reduce: this rank sends ", "[3000000] float32", "[3000000] int32", ", rank {} sends",
       "; they must be equal.");
  both("reductions", "all_reduce: this rank's reduction is ", "sum", "max", ", rank {}'s is", "; they must be equal.");
  both("gathers", "all_gather: this rank calls ", "all_gather", "all_gather_async", ", rank {} calls",
       "; all ranks must call the same.");
  both("roots", "broadcast: this rank's root is ", "0", "1", ", rank {}'s is", "; they must be equal.");
  check("operations",
        "barrier: operation 2 of this rank is barrier, rank 1's operation 2 is broadcast; all ranks must call the same "
        "operations in the same order.",
        "broadcast: operation 2 of this rank is broadcast, rank 0's operation 2 is barrier; all ranks must call the "
        "same operations in the same order.");
  const auto out = run_mpi("messages")[0].out;
  CAPTURE(out);
  CHECK(out.find(at_rank(1,
                         "recv: a message ([3] float32) cannot end: rank 0 sends more than the 12 bytes that this rank "
                         "expects")) != std::string::npos);
}

TEST_CASE("mpi, debug: an operation that one rank alone calls between two steps is told at once") {
  check_one_is_told("debug_extra", kBarrierBesideExtra, kExtraBesideBarrier);
  check_one_is_told("debug_extra_last", kStepBesideExtra, kExtraBesideStep);
}

TEST_CASE("mpi: a rank that stays away from MPI's start is waited for until the timeout, and the launcher names it") {
  const auto job = run_mpi("stays_away");
  CHECK(job[0].out == at_rank(0,
                              "connect: waited 2 s for the other ranks in MPI's start; one has not come, or cannot be "
                              "reached"));
  CAPTURE(job[0].err);
  CHECK(job[0].err.find(") ended first, exit code 3 in MPI_Init, to which worker 1 has not come; the others were "
                        "stopped.") != std::string::npos);
  CHECK(job[0].code == 3);
}

TEST_CASE("mpi: a failure that a program handles is none of the job's, and the other ranks are not stopped") {
  const std::string left =
      fmt::format("[rank 1 of 2, {}] MPI_Finalize: waited 2 s for the other ranks; left without them\n",
                  accelerate::base::host_name());
  for (const auto& [scenario, said] : {std::pair("caught", std::string()), std::pair("handled", left)}) {
    const auto job = run_mpi(scenario);
    CAPTURE(job[0].out);
    CAPTURE(job[0].err);
    CHECK(job[0].out.find("rank 0 saved\n") != std::string::npos);
    CHECK(job[0].out.find("rank 1 saved\n") != std::string::npos);
    CHECK(job[0].err == said);
    CHECK(job[0].code == 0);
  }
}

TEST_CASE("mpi: whoever waits for a rank that an exception took out of the group is told at once") {
  for (const auto& [scenario, elements] :
       {std::pair("caught_while_waited_for", 4), std::pair("caught_while_waited_for_large", 3'000'000)}) {
    const auto job = run_mpi(scenario);
    CHECK(job[0].out ==
          at_rank(0, fmt::format("all_reduce: operation 2 ([{}] float32) cannot end: rank 1 gave up after an error of "
                                 "its own",
                                 elements)));
  }
  CHECK(run_mpi("caught_and_again")[0].out == "sum 2\nsum 2\n");
  const auto out = run_mpi("refused_while_waited_for")[0].out;
  CAPTURE(out);
  CHECK(out.find(at_rank(0,
                         "all_reduce: operation 1 ([4] float32) cannot end: rank 1 gave up after an error of its "
                         "own")) != std::string::npos);
}

TEST_CASE("mpi: an operation that a rank which has ended will not come to cannot end") {
  const auto job = run_mpi("operation_of_who_ended");
  CHECK(job[0].out == at_rank(0, "all_reduce: operation 1 ([4] float32) cannot end: rank 1 has ended"));
  CHECK(job[0].code == 3);
}

TEST_CASE("mpi: a message of or to a rank that has left cannot end, and what it sent before comes through") {
  const auto out = [](const std::string& scenario) { return run_mpi(scenario)[0].out; };
  CHECK(out("message_of_who_ended") ==
        "the first message\n" + at_rank(0, "recv: a message ([2] float32) cannot end: rank 1 has ended"));
  CHECK(out("message_to_who_ended") == at_rank(0, "send: a message ([3000000] float32) cannot end: rank 1 has ended"));
  CHECK(out("caught_while_received_from") ==
        at_rank(0, "recv: a message ([4] float32) cannot end: rank 1 gave up after an error of its own"));
}

TEST_CASE("mpi: a rank that died is named by the launcher, which stops the others") {
  for (const int rank : {0, 1}) {
    const auto job = run_mpi(fmt::format("rank_{}_dies", rank));
    CAPTURE(job[0].err);
    CHECK(job[0].err.find(fmt::format("accelerate_launch: worker {} (", rank)) != std::string::npos);
    CHECK(job[0].err.find(") ended first, exit code 7; the others were stopped.") != std::string::npos);
    CHECK(job[0].code == 7);
  }
}

TEST_CASE("mpi: when rank 0 is frozen the others are told after the timeout, and the launcher says that it is") {
  const auto job = run_mpi("rank_0_freezes");
  CHECK(job[0].out == at_rank(1, "all_reduce: waited 2 s in operation 2 ([4] float32); rank 0 has not come."));
  CAPTURE(job[0].err);
  CHECK(job[0].err.find(") ended first, exit code 3, while worker 0 was suspended by a signal; the others were "
                        "stopped.") != std::string::npos);
  CHECK(job[0].code == 3);
}

TEST_CASE("mpi: trailing dimensions that differ are told on every rank, and shapes in debug mode") {
  auto job = run_mpi("ragged");
  for (const int rank : {0, 1}) {
    CAPTURE(job[0].out);
    const std::string mine = rank == 1 ? "12" : "10";
    const std::string theirs = rank == 1 ? "10" : "12";
    CHECK(job[0].out.find(fmt::format("all_gather: this rank sends [64, {}] float32, rank {} sends [64, {}] float32; "
                                      "only the first dimension may differ.",
                                      mine, 1 - rank, theirs)) != std::string::npos);
  }
  job = run_mpi("debug_shapes");
  CHECK(job[0].out.find("all_reduce: this rank sends [4] float32, rank 1 sends [5] float32; they must be equal.") !=
        std::string::npos);
}

TEST_CASE("mpi: an MPI without threads, and one that has ended, are refused") {
  const auto rank = [](const std::string& scenario) {
    return fmt::format("env RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 ACCELERATE_BACKEND=mpi {} {}",
                       FAULT_RANKS, scenario);
  };
  const auto error = [](const std::string& text) {
    return fmt::format("environment: [rank 0 of 2, {}] connect: {}\n", accelerate::base::host_name(), text);
  };
  const auto ranks = run({rank("mpi_gives_less"), rank("mpi_without_threads"), rank("mpi_finalized")});
  CHECK(ranks[0].out == error("this MPI gives thread level 2, must give MPI_THREAD_MULTIPLE (3); use another MPI, or "
                              "backend gloo"));
  CHECK(ranks[1].out == error("the program initialised MPI at thread level 0, must be MPI_THREAD_MULTIPLE (3); call "
                              "MPI_Init_thread with it, or leave MPI to Accelerate"));
  CHECK(ranks[2].out == error("MPI was finalized already in this process"));
}

TEST_CASE("mpi: a world that is not MPI's is refused with both") {
  const auto ranks = run({fmt::format(
      "env RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=2 ACCELERATE_BACKEND=mpi {} slow_connect", FAULT_RANKS)});
  CHECK(ranks[0].out ==
        fmt::format("environment: [rank 0 of 2, {}] connect: MPI says rank 0 of 1, the environment says rank 0 of 2; "
                    "start the program with mpirun or accelerate_launch, or use backend gloo\n",
                    accelerate::base::host_name()));
  CHECK(ranks[0].code == 3);
}

#endif

TEST_CASE("run_threads: when the system refuses a thread those that run are told and end") {
  const auto ranks = run({fmt::format("{} threads", FAULT_RANKS)});
  CHECK(ranks[0].out ==
        "environment: run_threads: 3 of 5 threads could be started, then the system refused: Resource temporarily "
        "unavailable; run fewer ranks, or raise the limits on threads and memory (ulimit -u, ulimit -v)\n");
  CHECK(ranks[0].code == 3);
}

TEST_CASE("a shell's ACCELERATE_BACKEND=nccl on a machine without GPU: one process runs, several are told") {
  const std::string shell = "ACCELERATE_BACKEND=nccl ACCELERATE_USE_CPU=1";
  const auto ranks = run(
      {fmt::format("env {} {} start", shell, FAULT_RANKS), rank_command(1, 2, free_port(), "start", "127.0.0.1", shell),
       fmt::format("env {} {} --cpu --num_processes 2 {} start", shell, ACCELERATE_LAUNCH, FAULT_RANKS)});
  const std::string text =
      "connect: backend (ACCELERATE_BACKEND) is 'nccl', which needs a GPU, and this rank computes on the CPU; use mpi "
      "or gloo, or unset it\n";
  CHECK(ranks[0].out.empty());
  CHECK(ranks[0].code == 0);
  CHECK(ranks[1].out == fmt::format("environment: [rank 1 of 2, {}] {}", accelerate::base::host_name(), text));
  CHECK(ranks[1].code == 3);
  CHECK(ranks[2].out.find(text) != std::string::npos);
  CHECK(ranks[2].code == 3);
}

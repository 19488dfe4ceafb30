// SPDX-License-Identifier: Apache-2.0
// A program that starts itself as ranks.
#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <map>
#include <sstream>

#include "tests/launch/run.hpp"
#include "tests/launch/scratch.hpp"

namespace fs = std::filesystem;
using testing::Child;
using testing::Ran;
using testing::Scratch;

namespace {

std::vector<std::string> program(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), TEST_BINARY_DIR "/bin/workers_program");
  return arguments;
}

Ran workers(const std::vector<std::string>& arguments, const accelerate::env::Variables& variables = {}) {
  return Child(program(arguments), variables).wait();
}

}  // namespace

TEST_CASE("consecutive launches run in order; a rank skips earlier ones and ends in its own") {
  const auto ran = workers({"twice"});
  CHECK(ran.err.empty());
  CHECK(ran.code == 0);
  CHECK(ran.out == "rank 0 of 2: first\nrank 1 of 2: first\nbetween\nbetween\nrank 0 of 1: second\n\xc3\xa4\nend\n");
}

TEST_CASE("a rank's Error is rethrown with kind, rank and text, while the others wait") {
  const auto ran = workers({"error"});
  CHECK(ran.code == 0);
  CHECK(ran.out == "data: launch_workers: rank 1 of 2: read: digit is 11\n");
}

TEST_CASE("a rank's Error keeps its fields: rank, world size, host, operation and missing ranks") {
  CHECK(workers({"fields"}).out ==
        "1 of 2 on gpu-b: all_gather, missing 0 3\n"
        "launch_workers: rank 1 of 2: [rank 1 of 2, gpu-b] all_gather: two\nlines\n");
}

TEST_CASE("other exceptions are rethrown with the rank and their full text") {
  CHECK(workers({"exception"}).out == "peer: launch_workers: rank 0 of 2: two\nlines\n");
}

TEST_CASE("a failure before a successful restart is not reported") {
  CHECK(workers({"once"}, {{"ACCELERATE_MAX_RESTARTS", "1"}}).out == "no error\n");
}

TEST_CASE("if all attempts fail, the last attempt's error is thrown") {
  const auto otherwise = workers({"otherwise"}, {{"ACCELERATE_MAX_RESTARTS", "1"}}).out;
  CHECK(otherwise.starts_with("peer: launch_workers: rank "));
  CHECK(otherwise.ends_with(" of 2: the second time\n"));
  CHECK(workers({"then_exits"}, {{"ACCELERATE_MAX_RESTARTS", "1"}}).out ==
        "peer: launch_workers: a rank ended with exit code 3 without an error text; see the launcher's output on "
        "stderr\n");
}

TEST_CASE("a rank without an error text is reported by its exit code or signal") {
  CHECK(workers({"killed"}).out ==
        "peer: launch_workers: a rank ended with exit code 137 (signal 9, Killed) without an error text; see the "
        "launcher's output on stderr\n");
  const auto exits = workers({"exits"});
  CHECK(exits.out ==
        "peer: launch_workers: a rank ended with exit code 3 without an error text; see the launcher's output on "
        "stderr\n");
  CHECK(exits.err.find("worker 0 (") != std::string::npos);
}

TEST_CASE("a rank that exits with 0 without reaching the call is an error") {
  const std::string text =
      "ended without coming to this call; main() has to lead every rank to it, and rank_main to return\n";
  CHECK(workers({"another_way"}).out == "usage: launch_workers: rank 0 of 2 " + text);
  CHECK(workers({"exits_well"}).out == "usage: launch_workers: rank 1 of 2 " + text);
}

TEST_CASE("ranks cannot launch others, and neither can a job of another launcher") {
  CHECK(workers({"nests"}).out.find("usage: launch_workers: this process is rank 0 of 2 already; a rank cannot launch "
                                    "others\n") != std::string::npos);
  const auto launched =
      testing::launch({"--num_processes", "2", "--backend", "gloo", TEST_BINARY_DIR "/bin/workers_program", "error"});
  CHECK(
      launched.out.find("usage: launch_workers: this process is rank 1 of 2 already; a rank cannot launch others\n") !=
      std::string::npos);
}

TEST_CASE("the number of processes is checked before anything is started") {
  CHECK(workers({"none"}).out == "launch_workers: num_processes is 0, must be from 1 to 4096\n");
}

TEST_CASE("ranks get the program's arguments as they are") {
  const std::string hostile = " a 'b' \"c\" $(d) \n;";
  CHECK(workers({"arguments", hostile}).out == hostile + "\n");
}

TEST_CASE("a program with threads can launch") {
  CHECK(workers({"after_threads"}).out == "rank 0 of 2: x\nrank 1 of 2: x\npeer: launch_workers: rank 1 of 2: again\n");
}

TEST_CASE("ranks end with the program that launched them, even if they ignore SIGTERM, and its folder is removed") {
  for (const std::string before : {"", "trap '' TERM; "}) {
    CAPTURE(before);
    const Scratch scratch(testing::in_memory);
    std::vector<pid_t> ranks;
    Child parent({"sh", "-c", before + "exec " + program({}).front() + " sleeps"}, scratch.variables());
    while (ranks.size() < 2) {
      REQUIRE(parent.wait_for("pid"));
      REQUIRE(parent.wait_for("\n"));
      ranks.clear();
      std::istringstream lines(parent.out());
      for (std::string word; lines >> word;) {
        if (word != "pid") ranks.push_back(static_cast<pid_t>(std::stol(word)));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      if (ranks.size() < 2) parent.wait_for("no such text", std::chrono::seconds(1));
    }
    CHECK_FALSE(scratch.empty());
    const auto [took, a_second] =
        testing::time_until([&] { return std::none_of(ranks.begin(), ranks.end(), testing::alive) && scratch.empty(); },
                            [&] { kill(parent.pid(), SIGKILL); });
    MESSAGE("gone after " << took.count() << " ms; allowed: " << a_second.count());
    CHECK(took <= a_second);
  }
}

TEST_CASE("ranks have their grace time after a Ctrl-C that ends the program at once") {
  std::vector<std::string> command{"setsid"};  // program and launcher share a process group, as at a terminal
  for (const auto& word : program({"saves"})) command.push_back(word);
  Child parent(command);
  REQUIRE(parent.wait_for("ready 0\n"));
  kill(-parent.pid(), SIGINT);
  const auto ran = parent.wait();
  CHECK(ran.code == 128 + SIGINT);
  CHECK(ran.out == "ready 0\nsaved\n");
}

TEST_CASE("the ranks' results are known if SIGCHLD is ignored") {
  struct sigaction ignore {};
  struct sigaction before {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGCHLD, &ignore, &before);
  Child failing(program({"error"}));
  Child well(program({"once"}), {{"ACCELERATE_MAX_RESTARTS", "1"}});
  sigaction(SIGCHLD, &before, nullptr);
  CHECK(failing.wait().out == "data: launch_workers: rank 1 of 2: read: digit is 11\n");
  CHECK(well.wait().out == "no error\n");
}

TEST_CASE("a program without standard streams can launch") {
  Child parent({"sh", "-c", "exec " + program({}).front() + " twice <&- >&- 2>&-"});
  CHECK(parent.wait(std::chrono::seconds(40)).code == 0);
}

TEST_CASE("hosts of a config file do not apply to launch_workers") {
  CHECK(workers({"once"}, {{"ACCELERATE_MAX_RESTARTS", "1"}, {"ACCELERATE_HOSTS", "gpu-a:4"}}).out == "no error\n");
}

TEST_CASE("only the user can read the files between main and ranks, for any umask") {
  const Scratch scratch;
  std::map<std::string, fs::perms> modes;
  {
    Child parent({"sh", "-c", "umask 0; exec " + program({"one_sleeps"}).front() + " one_sleeps"}, scratch.variables());
    REQUIRE(parent.wait_for("rank 1 sleeps\n"));
    const auto folder_of_main = [&] {
      for (const auto& each : fs::directory_iterator(scratch.path)) {
        if (fs::exists(each.path() / "done_0")) return each.path();
      }
      return fs::path();
    };
    static_cast<void>(testing::time_until([&] { return !folder_of_main().empty(); }, [] {}));
    REQUIRE_FALSE(folder_of_main().empty());
    modes["the folder"] = fs::status(folder_of_main()).permissions();
    for (const auto& each : fs::directory_iterator(folder_of_main())) {
      modes[each.path().filename()] = each.status().permissions();
    }
  }
  using fs::perms;
  CHECK(modes == std::map<std::string, perms>{{"the folder", perms::owner_all},
                                              {"argument", perms::owner_read | perms::owner_write},
                                              {"start_0", perms::owner_read | perms::owner_write},
                                              {"done_0", perms::owner_read | perms::owner_write}});
}

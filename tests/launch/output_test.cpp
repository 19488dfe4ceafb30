// SPDX-License-Identifier: Apache-2.0
// Blocked output: readers that do not read, full disks, programs that outlive the ranks.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/launch/run.hpp"
#include "tests/launch/scratch.hpp"
#include "tests/launch/terminal.hpp"

using testing::Child;
using testing::launch;
using testing::launcher;
using Words = std::vector<std::string>;

namespace {

const std::string program = TEST_BINARY_DIR "/bin/accelerate_launch --main_process_port 0 --backend gloo ";

Words ranks(const std::string& script) {
  return launcher({"--num_processes", "2", "--backend", "gloo", "--main_process_port", "0", "sh", "-c", script});
}

/// Waits until the launcher blocks on its reader: long enough to fill every queue on a busy machine.
void let_it_fill() { std::this_thread::sleep_for(std::chrono::seconds(2)); }

size_t count(const std::string& text, const std::string& word) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += word.size()) ++found;
  return found;
}

}  // namespace

TEST_CASE("a signal is handled although nothing reads the output") {
  Child child(ranks("exec yes"));
  let_it_fill();
  kill(child.pid(), SIGTERM);
  REQUIRE(child.ends_unread());
  const auto ran = child.wait();
  CHECK(ran.code == 128 + SIGTERM);
  CHECK(ran.err.find("after signal 15 was forwarded.\n") != std::string::npos);
  CHECK(ran.err.find(" bytes for stdout are lost: no process read them\n") != std::string::npos);
}

TEST_CASE("a signal ends the wait for a reader, also after the ranks have exited") {
  Child child(ranks("head -c 3000000 /dev/zero"));
  let_it_fill();
  kill(child.pid(), SIGINT);
  REQUIRE(child.ends_unread());
  const auto ran = child.wait();
  CHECK(ran.code == 128 + SIGINT);
  CHECK(ran.err.find(" bytes for stdout are lost: no process read them\n") != std::string::npos);
}

TEST_CASE("a rank that saves and prints after a signal does not wait for a suspended reader") {
  Child child(
      ranks("trap 'head -c 1000000 /dev/zero; echo saved >&2; exit 0' TERM; head -c 20000000 /dev/zero & "
            "while :; do sleep 0.1; done"));
  let_it_fill();
  kill(child.pid(), SIGTERM);
  REQUIRE(child.ends_unread());
  const auto ran = child.wait();
  CHECK(ran.code == 0);
  CHECK(count(ran.err, "saved\n") == 2);
}

TEST_CASE("a rank finishes saving although the same Ctrl-C ended the reader of its output") {
  // A separate group, as a terminal's foreground group; the shell itself survives, as an interactive one does.
  Child child({"setsid", "sh", "-c",
               "trap : INT; " + program +
                   "--num_processes 2 sh -c 'save() { for part in 1 2 3 4 5; do echo $part; sleep 0.1; done; "
                   "echo saved >&2; exit 0; }; trap save INT; echo up; while :; do sleep 0.1; done' | cat"});
  REQUIRE(child.wait_for("up\nup\n"));
  kill(-child.pid(), SIGINT);
  CHECK(count(child.wait().err, "saved\n") == 2);
}

TEST_CASE("a slow reader gets all output, also after the ranks have exited") {
  Child child(ranks("head -c 3000000 /dev/zero"));
  let_it_fill();
  const auto ran = child.wait();
  CHECK(ran.code == 0);
  CHECK(ran.out.size() == 6'000'000);
  CHECK(ran.err == "");
}

TEST_CASE("a full disk is reported once, and training continues") {
  const auto ran = Child({"sh", "-c",
                          program + "--num_processes 2 sh -c 'echo loss; sleep 0.2; echo loss; echo done >&2' > "
                                    "/dev/full"})
                       .wait();
  CHECK(ran.code == 0);
  CHECK(count(ran.err,
              "accelerate_launch: stdout cannot be written: No space left on device; the ranks continue, and their "
              "output to it is lost\n") == 1);
  CHECK(count(ran.err, "accelerate_launch") == 1);
  CHECK(count(ran.err, "done\n") == 2);
}

TEST_CASE("a log that reaches the file size limit is reported once, and training continues") {
  const testing::Scratch scratch;
  const auto ran = Child({"sh", "-c",
                          "ulimit -f 8; " + program + "--num_processes 1 --log_dir " + scratch.path +
                              " sh -c 'head -c 6000 /dev/zero; sleep 0.2; head -c 6000 /dev/zero; echo done >&2'"})
                       .wait();
  CHECK(ran.code == 0);
  CHECK(ran.out.size() == 12'000);
  CHECK(count(ran.err,
              "accelerate_launch: the log of rank 0 cannot be written: File too large; the ranks continue, and their "
              "output to it is lost\n") == 1);
  CHECK(count(ran.err, "done\n") == 1);
  CHECK(std::filesystem::file_size(scratch.path + "/rank_0.log") > 0);
}

TEST_CASE("a file size limit ends a rank that reaches it, as without a launcher") {
  const testing::Scratch scratch;
  const auto ran = Child({"sh", "-c",
                          "ulimit -f 8; " + program + "--num_processes 1 sh -c 'exec head -c 60000 /dev/zero > " +
                              scratch.path + "/file'"})
                       .wait();
  CHECK(ran.code == 128 + SIGXFSZ);
}

TEST_CASE("each line of all ranks is whole and labelled") {
  const auto ran =
      launch({"--num_processes", "3", "--backend", "gloo", "--label", "sh", "-c",
              "i=0; while [ $i -lt 200 ]; do printf $RANK$RANK; printf \"$RANK$RANK\\n\"; i=$((i+1)); done"});
  CHECK(ran.code == 0);
  std::map<std::string, int> lines;
  std::istringstream text(ran.out);
  for (std::string line; std::getline(text, line);) ++lines[line];
  CHECK(lines == std::map<std::string, int>{{"[rank 0] 0000", 200}, {"[rank 1] 1111", 200}, {"[rank 2] 2222", 200}});
}

TEST_CASE("labels have colours on a terminal unless it has none or NO_COLOR is set") {
  const auto shown = [](const accelerate::env::Variables& variables) {
    auto words = ranks("[ $RANK = 1 ] || echo loss");
    words.insert(words.end() - 3, "--label");
    testing::AtTerminal terminal(words, variables);
    const auto screen = terminal.read_all();
    CHECK(terminal.wait() == 0);
    return screen;
  };
  CHECK(shown({{"TERM", "xterm"}, {"NO_COLOR", ""}}) == "\x1b[31m[rank 0]\x1b[0m loss\r\n");
  CHECK(shown({{"TERM", "xterm"}, {"NO_COLOR", "1"}}) == "[rank 0] loss\r\n");
  CHECK(shown({{"TERM", "dumb"}, {"NO_COLOR", ""}}) == "[rank 0] loss\r\n");
}

TEST_CASE("log files contain all output of each rank, over restarts; the filter applies to the terminal") {
  const testing::Scratch scratch;
  const auto ran = launch({"--num_processes", "2", "--backend", "gloo", "--max_restarts", "1", "--log_dir",
                           scratch.path, "--local_ranks_filter", "1", "sh", "-c",
                           "echo out $RANK; echo err $RANK >&2; [ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; "
                           "[ $RANK = 0 ] && sleep 0.5 && exit 3; sleep 300"});
  CAPTURE(ran.err);
  CHECK(ran.code == 0);
  CHECK(ran.out == "out 1\nout 1\n");
  CHECK(count(ran.err, "err 1\n") == 2);
  for (const std::string rank : {"0", "1"}) {
    std::stringstream log;
    log << std::ifstream(scratch.path + "/rank_" + rank + ".log").rdbuf();
    CHECK(count(log.str(), "out " + rank + "\n") == 2);
    CHECK(count(log.str(), "err " + rank + "\n") == 2);
    CHECK(count(log.str(), "---- accelerate_launch: restart 1, ") == 1);
  }
}

TEST_CASE("quiet suppresses only the launcher's notes") {
  const accelerate::env::Variables loser{{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "8"}};
  const auto ran =
      launch({"--quiet", "--gradient_accumulation_steps", "2", "sh", "-c", "echo note >&2; exit 3"}, loser);
  CHECK(ran.code == 3);
  CHECK(ran.err.starts_with("note\naccelerate_launch: worker 0 ("));
}

TEST_CASE("a hundred megabytes of lines are forwarded and logged completely") {
  const testing::Scratch scratch;
  constexpr int lines = 1'000'000;  // of 50 bytes, twice
  const auto ran = launch({"--num_processes", "2", "--backend", "gloo", "--log_dir", scratch.path, "sh", "-c",
                           "yes 0123456789012345678901234567890123456789012345678 | head -n " + std::to_string(lines)});
  CHECK(ran.code == 0);
  CHECK(ran.out.size() == 100'000'000);
  CHECK(std::filesystem::file_size(scratch.path + "/rank_0.log") == 50'000'000);
  CHECK(std::filesystem::file_size(scratch.path + "/rank_1.log") == 50'000'000);
}

TEST_CASE("an orphan that continues writing does not block the launcher") {
  Child child(launcher(
      {"--main_process_port", "0", "--grace_time", "1", "sh", "-c", "(trap '' TERM; exec setsid yes) & sleep 0.5"}));
  REQUIRE(child.ends_read_slowly());  // a fast reader might find the pipe empty for a moment
  CHECK(child.wait().code == 0);
}

// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/launch/run.hpp"
#include "tests/launch/terminal.hpp"

using testing::AtTerminal;
using Words = std::vector<std::string>;

namespace {

/// Uses gloo, so that no rank waits in MPI_Init.
const std::string typed_to = TEST_BINARY_DIR "/bin/accelerate_launch --main_process_port 0 --backend gloo --quiet ";

/// A shell that gives each job its own process group, as an interactive shell does.
Words shell(const std::string& script) { return {"bash", "-c", "set -m; " + script}; }

bool has(const std::string& screen, const std::string& text) { return screen.find(text) != std::string::npos; }

}  // namespace

TEST_CASE("input at the launcher's terminal reaches rank 0 through a pipe, and no other rank") {
  AtTerminal terminal(shell(typed_to +
                            "--num_processes 2 sh -c 'if [ $RANK = 1 ]; then read x || echo 1 reads none; exit 0; fi; "
                            "[ -t 0 ] || echo a pipe; read x; echo got $x; read x; echo got $x'"));
  terminal.type("one\n");
  CHECK(terminal.see("got one\r\n"));
  terminal.type("two\n");
  const auto screen = terminal.read_all();
  CAPTURE(screen);
  CHECK(has(screen, "a pipe\r\n"));
  CHECK(has(screen, "got two\r\n"));
  CHECK(has(screen, "1 reads none\r\n"));
  CHECK(terminal.wait() == 0);
}

TEST_CASE("Ctrl-D at a terminal ends rank 0's stdin for this attempt only") {
  AtTerminal terminal(shell(typed_to +
                            "--max_restarts 1 sh -c 'n=$TORCHELASTIC_RESTART_COUNT; echo start $n; echo $n got $(cat); "
                            "exit $((1 - n))'"));
  CHECK(terminal.see("start 0\r\n"));
  terminal.type("one\n\x04");
  CHECK(terminal.see("0 got one\r\n"));
  terminal.type("two\n\x04");
  const auto screen = terminal.read_all();
  CAPTURE(screen);
  CHECK(has(screen, "1 got two\r\n"));
  CHECK(terminal.wait() == 0);
}

TEST_CASE("a rank 0 that does not read gets one line, other input stays in the terminal") {
  AtTerminal terminal(shell(typed_to + "sh -c 'echo up; exec sleep 3'; read x; echo left $x"));
  CHECK(terminal.see("up\r\n"));
  terminal.type("one\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // separates the two reads
  terminal.type("two\n");
  const auto screen = terminal.read_all();
  CAPTURE(screen);
  CHECK(has(screen, "left two\r\n"));
  CHECK(terminal.wait() == 0);
}

TEST_CASE("a rank 0 that has closed its stdin or exited gets no input") {
  for (const std::string ranks : {"if [ $RANK = 0 ]; then exec 0<&-; echo up; fi; exec sleep 2",
                                  "[ $RANK = 0 ] && exit 0; sleep 1; echo up; exec sleep 2"}) {
    AtTerminal terminal(
        shell(typed_to + "--num_processes 2 sh -c '" + ranks + "'; echo code $?; read x; echo left $x"));
    CHECK(terminal.see("up\r\n"));
    terminal.type("one\n");
    const auto screen = terminal.read_all();
    CAPTURE(screen);
    CHECK(has(screen, "code 0\r\n"));
    CHECK(has(screen, "left one\r\n"));
    CHECK(terminal.wait() == 0);
  }
}

TEST_CASE("Ctrl-C ends ranks that do not read the input") {
  AtTerminal terminal(shell(typed_to + "--num_processes 2 sh -c 'echo up; exec sleep 300'; echo code $?"));
  CHECK(terminal.see("up\r\nup\r\n"));
  for (int line = 0; line < 60; ++line) terminal.type("fifty bytes and no more, a terminal has room for 4 KB\n");
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  terminal.type("\x03");
  const auto screen = terminal.read_all();
  CAPTURE(screen);
  CHECK(has(screen, "after signal 2 was forwarded.\r\n"));
  terminal.wait();
}

TEST_CASE("a terminal with unread input does not delay a signal") {
  AtTerminal terminal(testing::launcher({"--main_process_port", "0", "sh", "-c", "echo up; exec sleep 300"}));
  CHECK(terminal.see("up\r\n"));
  CHECK(terminal.type_until_full("fifty bytes and no more, a terminal has room for 4 KB\n") > 4096);
  kill(terminal.pid(), SIGINT);
  CHECK(has(terminal.read_all(), "after signal 2 was forwarded.\r\n"));
  CHECK(terminal.wait() == 128 + SIGINT);
}

TEST_CASE("a background launcher neither reads the terminal nor is stopped by it; after fg it gets the input") {
  AtTerminal terminal(shell(typed_to +
                            "sh -c 'echo up; read x; echo rank got $x' & read x; sleep 1; jobs -s; echo shell got $x; "
                            "fg > /dev/null"));
  CHECK(terminal.see("up\r\n"));
  terminal.type("one\n");
  CHECK(terminal.see("one\r\nshell got one\r\n"));  // the echo, without a stopped job in between
  terminal.type("two\n");
  const auto screen = terminal.read_all();
  CAPTURE(screen);
  CHECK(has(screen, "rank got two\r\n"));
  CHECK(terminal.wait() == 0);
}

TEST_CASE("the shell gets the input after Ctrl-Z and bg, rank 0 after fg") {
  AtTerminal terminal(
      shell(typed_to +
            "sh -c 'echo up; read x; echo rank got $x; read x; echo rank got $x'; "
            "echo; echo stopped; bg > /dev/null; read x; sleep 1; jobs -s; echo shell got $x; fg > /dev/null"));
  CHECK(terminal.see("up\r\n"));
  terminal.type("one\n");
  CHECK(terminal.see("rank got one\r\n"));
  terminal.type("\x1a");
  CHECK(terminal.see("stopped\r\n"));
  terminal.type("two\n");
  CHECK(terminal.see("two\r\nshell got two\r\n"));
  terminal.type("three\n");
  const auto screen = terminal.read_all();
  CAPTURE(screen);
  CHECK(has(screen, "rank got three\r\n"));
  CHECK(terminal.wait() == 0);
}

TEST_CASE("a pager that shows the output gets all keys") {
  AtTerminal terminal(shell(typed_to +
                            "sh -c 'echo up; exec sleep 2' | { read x; stty -icanon < /dev/tty; echo pager; sleep 1; "
                            "read -n 6 x < /dev/tty; stty icanon < /dev/tty; echo; echo keys $x; }"));
  CHECK(terminal.see("pager\r\n"));
  terminal.type("abcdef");
  const auto screen = terminal.read_all();
  CAPTURE(screen);
  CHECK(has(screen, "keys abcdef\r\n"));
  CHECK(terminal.wait() == 0);
}

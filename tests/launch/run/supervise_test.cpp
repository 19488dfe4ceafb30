// SPDX-License-Identifier: Apache-2.0
#include "launch/run/supervise.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <sstream>
#include <string>

#include "accelerate/base/error.hpp"
#include "accelerate/base/file_descriptor.hpp"
#include "launch/plan/plan.hpp"
#include "tests/launch/run.hpp"
#include "tests/launch/scratch.hpp"

using accelerate::launch::LaunchOptions;
using accelerate::launch::supervise;

namespace {

/// A file that replaces the launcher's stdout and stderr.
struct Sink {
  Sink() { fd = mkstemp(name); }
  ~Sink() {
    close(fd);
    unlink(name);
  }
  [[nodiscard]] std::string text() const {
    std::stringstream content;
    content << std::ifstream(name).rdbuf();
    return content.str();
  }
  char name[32] = "/tmp/supervise_test.XXXXXX";
  int fd = -1;
};

/// A process that sends the signal to this one after the launcher has printed the text.
pid_t signal_when(const Sink& err, const std::string& message, int number) {
  const pid_t launcher = getpid();
  const pid_t user = fork();
  if (user != 0) return user;
  for (int i = 0; i < 6000 && err.text().find(message) == std::string::npos; ++i) usleep(10'000);
  kill(launcher, number);
  _exit(0);
}

/// Fills a pipe without a reader until it accepts no more bytes.
void fill(int pipe) {
  const int flags = fcntl(pipe, F_GETFL);
  fcntl(pipe, F_SETFL, flags | O_NONBLOCK);
  while (write(pipe, "x", 1) == 1) {
  }
  fcntl(pipe, F_SETFL, flags);
}

accelerate::launch::LaunchPlan ranks(int64_t count, const std::string& script,
                                     const accelerate::env::Variables& variables = {}) {
  const LaunchOptions options{.num_processes = count, .command = {"sh", "-c", script}};
  auto all = accelerate::env::current_variables();
  for (const auto& [name, value] : variables) all[name] = value;
  return plan(options, {}, all, {.port = 29500});
}

/// "accelerate_launch: worker 1 (host, pid ..., time) tail": process number and time differ from run to run.
void check_output(const std::string& text, int rank, const std::string& rest) {
  CAPTURE(text);
  const std::string head =
      "accelerate_launch: worker " + std::to_string(rank) + " (" + accelerate::base::host_name() + ", pid ";
  const auto at = text.find(head);
  REQUIRE(at != std::string::npos);
  const auto place_end = text.find(')', at + head.size());
  CHECK(text.substr(place_end) == rest);
}

}  // namespace

TEST_CASE("successful ranks result in 0 and only their output") {
  const Sink out;
  const Sink err;
  CHECK(supervise(ranks(3, "sleep 0.$LOCAL_RANK; echo rank $RANK of $WORLD_SIZE; echo note >&2"),
                  {.out = out.fd, .err = err.fd}) == 0);
  CHECK(out.text() == "rank 0 of 3\nrank 1 of 3\nrank 2 of 3\n");
  CHECK(err.text() == "note\nnote\nnote\n");
}

TEST_CASE("the first rank that fails is named with its last lines, and the others are stopped") {
  const Sink out;
  const Sink err;
  const auto start = std::chrono::steady_clock::now();
  CHECK(
      supervise(ranks(3, "if [ $RANK = 1 ]; then echo loss 0.5; echo boom >&2; sleep 0.2; exit 7; fi; exec sleep 300"),
                {.out = out.fd, .err = err.fd}) == 7);
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
  check_output(err.text(), 1,
               ") ended first, exit code 7; the others were stopped. Its last lines follow.\nloss 0.5\nboom\n");
}

TEST_CASE("a rank that is killed by a signal results in 128 + signal") {
  const Sink out;
  const Sink err;
  CHECK(supervise(ranks(2, "if [ $RANK = 0 ]; then kill -9 $$; fi; exec sleep 300"), {.out = out.fd, .err = err.fd}) ==
        137);
  check_output(err.text(), 0, ") ended first, signal 9 (killed); the others were stopped. It printed nothing.\n");
}

TEST_CASE("a job of one rank prints its output once") {
  const Sink out;
  const Sink err;
  CHECK(supervise(ranks(1, "printf partial; exit 3"), {.out = out.fd, .err = err.fd}) == 3);
  CHECK(out.text() == "partial");
  check_output(err.text(), 0, ") ended with exit code 3.\n");
}

TEST_CASE("no rank is stopped if the last rank fails") {
  const Sink out;
  const Sink err;
  CHECK(supervise(ranks(2, "if [ $RANK = 0 ]; then exit 0; fi; sleep 1; exit 4"), {.out = out.fd, .err = err.fd}) == 4);
  check_output(err.text(), 1,
               ") failed first, exit code 4, after worker 0 had ended with exit code 0. It printed nothing.\n");
}

TEST_CASE("a suspended rank is named if another rank fails") {
  const Sink out;
  const Sink err;
  CHECK(supervise(ranks(2, "if [ $RANK = 1 ]; then kill -STOP $$; fi; sleep 0.5; exit 3"),
                  {.grace = std::chrono::milliseconds(100), .out = out.fd, .err = err.fd}) == 3);
  check_output(
      err.text(), 0,
      ") ended first, exit code 3, while worker 1 was suspended by a signal; the others were stopped. It printed "
      "nothing.\n");
}

TEST_CASE("a rank that ignores SIGTERM is killed after the grace time") {
  const Sink out;
  const Sink err;
  const auto start = std::chrono::steady_clock::now();
  CHECK(supervise(ranks(2, "if [ $RANK = 0 ]; then sleep 0.3; exit 5; fi; trap '' TERM; while :; do sleep 1; done"),
                  {.grace = std::chrono::milliseconds(300), .out = out.fd, .err = err.fd}) == 5);
  const auto took = std::chrono::steady_clock::now() - start;
  CHECK(took >= std::chrono::milliseconds(600));
  CHECK(took < std::chrono::seconds(60));
}

TEST_CASE("a first signal during a failure's grace time does not restart the grace time") {
  const Sink out;
  const Sink err;
  const std::string launcher = std::to_string(getpid());
  const auto start = std::chrono::steady_clock::now();
  CHECK(supervise(ranks(2, "if [ $RANK = 0 ]; then sleep 0.5; exit 5; fi; trap '' TERM INT; sleep 7; kill -INT " +
                               launcher + "; while :; do sleep 1; done"),
                  {.grace = std::chrono::seconds(10), .out = out.fd, .err = err.fd}) == 5);
  const auto took = std::chrono::steady_clock::now() - start;
  CHECK(took >= std::chrono::seconds(10));
  CHECK(took < std::chrono::seconds(15));  // a restart would take at least 17 s
}

TEST_CASE("child processes of a rank end with it, and no zombie remains") {
  const Sink out;
  const Sink err;
  CHECK(supervise(ranks(1, "sleep 300 & echo $!"), {.out = out.fd, .err = err.fd}) == 0);
  const pid_t helper = static_cast<pid_t>(std::stol(out.text()));
  CHECK(testing::gone(helper));
  CHECK(waitpid(-1, nullptr, WNOHANG) == -1);
}

TEST_CASE("the report quotes torchrun's error file of a worker") {
  const Sink out;
  const Sink err;
  CHECK(
      supervise(ranks(2,
                      "if [ $RANK = 0 ]; then exec sleep 300; fi; echo loss; "
                      "echo '{\"message\": \"no \\\"data\\\"\", \"timestamp\": 7}' > $TORCHELASTIC_ERROR_FILE; exit 1"),
                {.out = out.fd, .err = err.fd}) == 1);
  check_output(err.text(), 1,
               ") ended first, exit code 1; the others were stopped. Its error follows.\nno \"data\"\n"
               "Its last lines follow.\nloss\n");
}

TEST_CASE("lines of several ranks do not mix") {
  const Sink out;
  const Sink err;
  const std::string script =
      "i=0; while [ $i -lt 200 ]; do printf \"$RANK$RANK$RANK\"; printf \"$RANK$RANK$RANK\\n\"; i=$((i+1)); done";
  CHECK(supervise(ranks(3, script), {.out = out.fd, .err = err.fd}) == 0);
  std::istringstream lines(out.text());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const bool whole = line == "000000" || line == "111111" || line == "222222";
    CHECK(whole);
  }
  CHECK(count == 600);
}

TEST_CASE("a rank that runs long after the others is named with its activity and continues") {
  const Sink out;
  const Sink err;
  CHECK(supervise(ranks(2,
                        "if [ $RANK = 0 ]; then sleep 1; exit 0; fi; (sleep 5; kill -CONT $$) & kill -STOP $$; "
                        "echo saved"),
                  {.straggler = std::chrono::milliseconds(500), .out = out.fd, .err = err.fd}) == 0);
  check_output(err.text(), 1, ") still runs 0.5 s after the others ended; it is stopped\n");
  CHECK(out.text() == "saved\n");
}

TEST_CASE("the report distinguishes if the last rank waits or computes") {
  for (const auto& [does, script] :
       {std::pair("waits", "exec sleep 4"),
        std::pair("computes", "trap 'exit 0' TERM; (sleep 4; kill $$) & while :; do :; done")}) {
    const Sink out;
    const Sink err;
    const std::string last = fmt::format("if [ $RANK = 0 ]; then exit 0; fi; {}", script);
    CHECK(supervise(ranks(2, last), {.straggler = std::chrono::seconds(1), .out = out.fd, .err = err.fd}) == 0);
    check_output(err.text(), 1, fmt::format(") still runs 1 s after the others ended; it {}\n", does));
  }
}

TEST_CASE("nothing is reported while several ranks continue after one has exited") {
  const Sink out;
  const Sink err;
  CHECK(supervise(ranks(3, "if [ $RANK = 0 ]; then exit 0; fi; sleep 3"),
                  {.straggler = std::chrono::milliseconds(500), .out = out.fd, .err = err.fd}) == 0);
  CHECK(err.text() == "");
}

TEST_CASE("ten restarts make ten attempts, each with its number") {
  const Sink out;
  const Sink err;
  const auto plan_of = [](int64_t restart) {
    auto plan = ranks(2,
                      "if [ $RANK = 1 ]; then [ $START = 10 ] && exit 0; exec sleep 300; fi; echo start $START; exit "
                      "$((10 - START))");
    for (auto& worker : plan.workers) worker.environment["START"] = std::to_string(restart);
    return plan;
  };
  CHECK(supervise(plan_of, {.restarts = {.max_restarts = 10, .backoff = std::chrono::milliseconds(1)},
                            .out = out.fd,
                            .err = err.fd}) == 0);
  std::string expected;
  for (int start = 0; start <= 10; ++start) expected += "start " + std::to_string(start) + "\n";
  CHECK(out.text() == expected);
  CHECK(err.text().find("accelerate_launch: restart 10 of 10 in ") != std::string::npos);
}

TEST_CASE("no process of the old attempt exists when the new one starts") {
  const testing::Scratch scratch;
  const Sink out;
  const Sink err;
  CHECK(supervise(ranks(1,
                        "if [ -s \"$NOTE\" ]; then kill -0 $(cat \"$NOTE\") 2>/dev/null && exit 9; exit 0; fi; "
                        "setsid sh -c 'trap \"\" TERM; echo $$ > \"$NOTE\"; sleep 300; sleep 300' & "
                        "while ! [ -s \"$NOTE\" ]; do sleep 0.05; done; exit 4",
                        {{"NOTE", scratch.path + "/pid"}}),
                  {.grace = std::chrono::milliseconds(200),
                   .restarts = {.max_restarts = 1, .backoff = std::chrono::milliseconds(1)},
                   .out = out.fd,
                   .err = err.fd}) == 0);
}

TEST_CASE("a signal during the backoff ends the job") {
  const Sink out;
  const Sink err;
  const pid_t user = signal_when(err, "restart 1 of 1", SIGINT);
  CHECK(supervise(ranks(1, "exit 4"), {.restarts = {.max_restarts = 1, .backoff = std::chrono::seconds(60)},
                                       .out = out.fd,
                                       .err = err.fd}) == 128 + SIGINT);
  waitpid(user, nullptr, 0);
}

TEST_CASE("a signal during the backoff of a requested restart returns the resume code at once") {
  for (const int number : {SIGUSR1, SIGTERM}) {
    CAPTURE(number);
    const Sink out;
    const Sink err;
    const pid_t user = signal_when(err, "requested a restart", number);
    CHECK(supervise(ranks(1, "exit 75"), {.resume_code = 75,
                                          .restarts = {.on_request = true, .backoff = std::chrono::seconds(60)},
                                          .out = out.fd,
                                          .err = err.fd}) == 75);
    CHECK(err.text().ends_with(fmt::format(
        "accelerate_launch: signal {} arrived after the ranks had ended with exit code 75; they request a restart\n",
        number)));
    waitpid(user, nullptr, 0);
  }
}

TEST_CASE("the launcher's report waits for a slow reader, at most for the grace time") {
  const Sink out;
  std::array<int, 2> err{};
  REQUIRE(pipe2(err.data(), O_CLOEXEC) == 0);
  const accelerate::base::FileDescriptor reader(err[0]);
  const accelerate::base::FileDescriptor writer(err[1]);
  fcntl(reader.get(), F_SETFL, O_NONBLOCK);
  const auto read_all = [&] {
    std::string text;
    std::array<char, 65536> buffer;
    for (ssize_t n = 0; (n = read(reader.get(), buffer.data(), buffer.size())) > 0;) {
      text.append(buffer.data(), static_cast<size_t>(n));
    }
    return text;
  };
  const accelerate::launch::SuperviseOptions options{
      .reader_grace = std::chrono::milliseconds(100),
      .resume_code = 75,
      .restarts = {.on_request = true, .backoff = std::chrono::milliseconds(1), .max_identical_failures = 2},
      .out = out.fd,
      .err = writer.get()};
  const std::string message = "accelerate_launch: the ranks requested a restart (exit code 75) in 0.001 s\n";

  fill(writer.get());
  const auto read_before_the_last_start = [&](int64_t restart) {
    if (restart == 1) static_cast<void>(read_all());
    return ranks(1, restart == 1 ? "exit 0" : "exit 75");
  };
  CHECK(supervise(read_before_the_last_start, options) == 0);
  CHECK(read_all() == message);

  fill(writer.get());
  CHECK(supervise(ranks(1, "exit 75"), options) == 75);  // although no process reads
  CHECK(read_all().find("accelerate_launch") == std::string::npos);
}

TEST_CASE("a program that cannot be executed ends the launch before a rank runs") {
  const LaunchOptions options{.num_processes = 2, .command = {"/no/such/program"}};
  CHECK_THROWS_WITH_AS(supervise(plan(options, {}, {}, {})),
                       "accelerate_launch: /no/such/program not found: No such file or directory",
                       accelerate::launch::LaunchError);
}

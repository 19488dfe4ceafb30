// SPDX-License-Identifier: Apache-2.0
// Within a second after the end of a job (plus the grace time if a rank uses it), no process, no shared memory and no
// temporary file of it remains. Each test reports its time.
#include <doctest/doctest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/launch/run.hpp"
#include "tests/launch/scratch.hpp"
#include "tests/launch/terminal.hpp"

using testing::Child;
using testing::Scratch;
using Words = std::vector<std::string>;

namespace {

/// Four processes per rank: the rank, a child, a grandchild with its own session, and one after a double fork. Each
/// writes "name pid" into its rank's file; the rank then runs `then`.
Words job(const std::string& then, const Words& options = {}) {
  const std::string script =
      "exec 3>>$PIDS/$RANK; echo shm $OMPI_MCA_btl_vader_backing_directory >&3; echo guardian $PPID >&3; "
      "sleep 300 & echo child $! >&3; "
      "setsid sh -c 'echo daemon $$ >&3; exec sleep 300' & "
      "(setsid sh -c 'echo hidden $$ >&3; exec sleep 300' &) ; "
      "echo rank $$ >&3; " +
      then;
  // mpirun passes the rank in another variable.
  const std::string place = "export RANK=${RANK:-$OMPI_COMM_WORLD_RANK}; ";
  Words words{"--num_processes", "2", "--main_process_port", "0", "--grace_time", "1"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"sh", "-c", place + script});
  return testing::launcher(words);
}

constexpr auto grace_time = std::chrono::milliseconds(1000);  // as job() has it
// Between its SIGTERM and its SIGKILL, even if no process is left (odls_base_sigkill_timeout); its folders remain as
// long.
constexpr auto pause_of_mpirun = std::chrono::milliseconds(1000);
const std::string wait_forever = "while :; do sleep 0.1; done";

enum class At { pipes, terminal };

class Job {
 public:
  explicit Job(const Words& command, At at = At::pipes) {
    if (at == At::pipes) {
      child_.emplace(command, variables());
    } else {
      terminal_.emplace(command, variables());
    }
  }

  /// All processes of both ranks have written their pids.
  bool is_up() {
    for (int i = 0; i < 3000; ++i) {
      if (named(0, "rank") && named(1, "rank") && pids().size() == 9) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return false;
  }

  [[nodiscard]] pid_t launcher() const { return child_->pid(); }
  void hang_up() { terminal_->hang_up(); }
  [[nodiscard]] pid_t named(int rank, const std::string& name) const {
    const auto words = reported(rank);
    const auto found = words.find(name);
    return found == words.end() || found->second.empty() ? 0 : static_cast<pid_t>(std::stol(found->second));
  }

  /// All processes of the job except the launcher, by name.
  [[nodiscard]] std::map<std::string, pid_t> pids() const {
    std::map<std::string, pid_t> all;
    for (int rank = 0; rank < 2; ++rank) {
      for (const auto& [name, text] : reported(rank)) {
        if (name == "shm" || (rank == 1 && name == "guardian")) continue;
        all[name + " " + std::to_string(rank)] = static_cast<pid_t>(std::stol(text));
      }
    }
    return all;
  }

  testing::Ran end() { return child_ ? child_->wait() : testing::Ran{.code = terminal_->wait(), .out = "", .err = ""}; }

  /// Triggers the end of the job and polls until no process of it is left.
  ///
  /// \param grace  Part of the time that an unresponsive rank was granted.
  void check_all_is_gone_after(const std::function<void()>& fault, std::chrono::milliseconds grace = {}) {
    const auto processes = pids();
    const std::string shared = reported(0)["shm"];
    CHECK(shared.find("/accelerate_launch.") != std::string::npos);
    std::string left;  // at the last check that found something
    const auto nothing_is_left = [&] {
      std::string now;
      for (const auto& [name, pid] : processes) now += testing::alive(pid) ? name + ", " : "";
      if (std::filesystem::exists(shared)) now += shared + ", ";
      if (!temporary.empty()) now += "temporary files, ";
      if (!now.empty()) left = now;
      return now.empty();
    };
    const auto [took, patience] = testing::time_until(nothing_is_left, fault);
    MESSAGE("gone after " << took.count() << " ms; allowed: " << (grace + patience).count() << "; last: " << left);
    CHECK(nothing_is_left());
    CHECK(took >= grace);
    CHECK(took <= grace + patience);
  }

 private:
  [[nodiscard]] accelerate::env::Variables variables() const {
    return {{"TMPDIR", temporary.path},
            {"PIDS", notes.path},
            {"ACCELERATE_BACKEND", "mpi"},
            {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
            {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};
  }
  [[nodiscard]] std::map<std::string, std::string> reported(int rank) const {
    std::map<std::string, std::string> words;
    std::ifstream file(notes.path + "/" + std::to_string(rank));
    for (std::string name, text; file >> name && std::getline(file >> std::ws, text);) words[name] = text;
    return words;
  }

  Scratch temporary{testing::in_memory};
  Scratch notes{testing::in_memory};
  std::optional<Child> child_;
  std::optional<testing::AtTerminal> terminal_;
};

/// Returns 0 if the process has ended.
pid_t parent_of(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string word; status >> word;) {
    if (word == "PPid:" && status >> pid) return pid;
  }
  return 0;
}

/// Returns the nearest ancestor with this name, or 0.
pid_t above(pid_t pid, const std::string& name) {
  while (pid > 1) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    std::string own;
    for (std::string word; status >> word && word != "PPid:";) {
      if (word == "Name:") status >> own;
    }
    if (own == name) return pid;
    if (!(status >> pid)) return 0;
  }
  return 0;
}

}  // namespace

TEST_CASE("a killed rank ends the job") {
  Job job(::job(wait_forever));
  REQUIRE(job.is_up());
  job.check_all_is_gone_after([&] { kill(job.named(1, "rank"), SIGKILL); });
  const auto ran = job.end();
  CHECK(ran.code == 137);
  CHECK(ran.err.find("accelerate_launch: worker 1 (") != std::string::npos);
  CHECK(ran.err.find(") ended first, signal 9 (killed); the others were stopped. It printed nothing.\n") !=
        std::string::npos);
}

TEST_CASE("a killed launcher ends the job") {
  Job job(::job(wait_forever));
  REQUIRE(job.is_up());
  job.check_all_is_gone_after([&] { kill(job.launcher(), SIGKILL); });
  CHECK(job.end().err.starts_with("accelerate_launch: the launcher was killed; sending SIGTERM to the ranks\n"));
}

TEST_CASE("a killed guardian ends the job") {
  Job job(::job(wait_forever));
  REQUIRE(job.is_up());
  const pid_t guardian = job.named(0, "guardian");
  REQUIRE(guardian != job.launcher());
  job.check_all_is_gone_after([&] { kill(guardian, SIGKILL); });
  const auto ran = job.end();
  CHECK(ran.code == 137);
  CHECK(ran.err == "accelerate_launch: its guardian (pid " + std::to_string(guardian) +
                       ") ended with signal 9 (killed); the ranks were stopped\n");
}

TEST_CASE("killing the launcher's whole process group ends the job") {
  auto words = ::job(wait_forever);
  words.insert(words.begin(), "setsid");  // setsid executes the launcher in its own group
  Job job(words);
  REQUIRE(job.is_up());
  REQUIRE(getpgid(job.launcher()) == job.launcher());
  job.check_all_is_gone_after([&] { kill(-job.launcher(), SIGKILL); });
}

TEST_CASE("termination signals end all processes") {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(number);
    Job job(::job(wait_forever));
    REQUIRE(job.is_up());
    job.check_all_is_gone_after([&] { kill(job.launcher(), number); });
    CHECK(job.end().code == 128 + number);
  }
}

TEST_CASE("termination signals end ranks that ignore them after the grace time") {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    CAPTURE(number);
    Job job(::job("trap '' INT TERM HUP; " + wait_forever));
    REQUIRE(job.is_up());
    job.check_all_is_gone_after([&] { kill(job.launcher(), number); }, grace_time);
    const auto ran = job.end();
    CHECK(ran.code == 137);
    CHECK(ran.err.find("ended with signal 9 (killed) after signal " + std::to_string(number) + " was forwarded.\n") !=
          std::string::npos);
  }
}

TEST_CASE("a rank that ignores SIGTERM ends after the grace time of a failure") {
  Job job(::job("[ $RANK = 0 ] || trap '' TERM; " + wait_forever));
  REQUIRE(job.is_up());
  job.check_all_is_gone_after([&] { kill(job.named(0, "rank"), SIGKILL); }, grace_time);
  CHECK(job.end().code == 137);
}

TEST_CASE("orphaned daemons end with the job, although all ranks exited with 0") {
  Job job(::job("trap 'exit 0' USR1; " + wait_forever));
  REQUIRE(job.is_up());
  job.check_all_is_gone_after([&] { kill(job.launcher(), SIGUSR1); });
  const auto ran = job.end();
  CHECK(ran.code == 0);
  CHECK(ran.err.find("accelerate_launch") == std::string::npos);
}

TEST_CASE("a killed mpirun ends its ranks and their child processes") {
  Job job(::job(wait_forever, {"--runner", "mpirun"}));
  REQUIRE(job.is_up());
  const pid_t mpirun = above(job.named(0, "rank"), "mpirun");
  REQUIRE(mpirun > 0);
  job.check_all_is_gone_after([&] { kill(mpirun, SIGKILL); });
  const auto ran = job.end();
  CHECK(ran.code == 137);
  CHECK(ran.err.find("accelerate_launch: mpirun (") != std::string::npos);
  CHECK(ran.err.find(") ended with signal 9 (killed).\n") != std::string::npos);
}

TEST_CASE("a killed wrapper of an mpirun rank ends the job") {
  for (const bool guardian : {true, false}) {
    CAPTURE(guardian);
    Job job(::job(wait_forever, {"--runner", "mpirun"}));
    REQUIRE(job.is_up());
    const pid_t around = job.named(0, "guardian");
    const pid_t victim = guardian ? around : parent_of(around);
    REQUIRE(above(victim, "mpirun") > 0);
    job.check_all_is_gone_after([&] { kill(victim, SIGKILL); }, pause_of_mpirun);
    CHECK(job.end().code != 0);
  }
}

TEST_CASE("a closed terminal ends all processes") {
  Job job(::job(wait_forever), At::terminal);
  REQUIRE(job.is_up());
  job.check_all_is_gone_after([&] { job.hang_up(); });
  CHECK(job.end().code == 128 + SIGHUP);
}

// SPDX-License-Identifier: Apache-2.0
// The program itself, started as by a user.
#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "launch/run/port.hpp"
#include "tests/launch/run.hpp"
#include "tests/launch/scratch.hpp"

using testing::Child;
using testing::launch;
using testing::launcher;
using Words = std::vector<std::string>;

namespace {

/// The numbers on the lines that start with this word.
std::vector<pid_t> numbers(const std::string& text, const std::string& word) {
  std::vector<pid_t> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(word + " ")) found.push_back(static_cast<pid_t>(std::stol(line.substr(word.size() + 1))));
  }
  return found;
}

/// Two gloo ranks that print "pid N", then "ready", and sleep.
Words sleepers(const std::string& before = "") {
  return launcher({"--num_processes", "2", "--backend", "gloo", "--main_process_port", "0", "sh", "-c",
                   before + "echo pid $$; [ $RANK = 1 ] && sleep 0.5 && echo ready; sleep 300 & wait"});
}

}  // namespace

TEST_CASE("ranks get their rank variables and their settings") {
  const auto ran = launch({"--cpu", "--num-processes", "2", "--backend", "gloo", "--debug",
                           "--gradient_accumulation_steps", "4", "--num_cpu_threads_per_process", "3", "--", "sh", "-c",
                           "sleep 0.$((RANK * 3)); echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR "
                           "$ACCELERATE_USE_CPU $ACCELERATE_BACKEND $ACCELERATE_DEBUG_MODE "
                           "$ACCELERATE_GRADIENT_ACCUMULATION_STEPS $OMP_NUM_THREADS \"$@\"",
                           "x", "--cpu"});
  CHECK(ran.code == 0);
  // --debug prints the environment of each rank.
  CHECK(ran.err.find("accelerate_launch: rank 1 is process ") != std::string::npos);
  CHECK(ran.err.find(" RANK=1 ") != std::string::npos);
  CHECK(ran.err.find(" ACCELERATE_JOB_ID=... ") != std::string::npos);
  CHECK(ran.out == "0 2 0 2 127.0.0.1 1 gloo 1 4 3 --cpu\n1 2 1 2 127.0.0.1 1 gloo 1 4 3 --cpu\n");
}

TEST_CASE("the launcher does not link LibTorch, a GPU library or MPI") {
  const auto ran = Child({"readelf", "--dynamic", "--wide", TEST_BINARY_DIR "/bin/accelerate_launch"}).wait();
  REQUIRE(ran.code == 0);
  std::istringstream lines(ran.out);
  std::vector<std::string> needed;
  for (std::string line; std::getline(lines, line);) {
    if (line.find("(NEEDED)") != std::string::npos) needed.push_back(line);
  }
  CHECK_FALSE(needed.empty());
  for (const auto& line : needed) {
    CAPTURE(line);
    for (const char* heavy : {"torch", "c10", "cuda", "nccl", "mpi", "pmix", "gloo", "gomp"}) {
      CAPTURE(heavy);
      CHECK(line.find(heavy) == std::string::npos);
    }
  }
}

TEST_CASE("ranks share one free port that a listener can use") {
  const auto ran = launch({"--num_processes", "2", "--backend", "gloo", "sh", "-c", "echo port $MASTER_PORT"});
  const auto ports = numbers(ran.out, "port");
  REQUIRE(ports.size() == 2);
  CHECK(ports[0] == ports[1]);
  CHECK(ports[0] > 0);
}

TEST_CASE("ranks share a unique job id") {
  const auto id = [] {
    const auto ran = launch({"--num_processes", "2", "--backend", "gloo", "sh", "-c", "echo $ACCELERATE_JOB_ID"});
    REQUIRE(ran.out.size() == 2 * 33);  // 32 digits and the end of the line
    CHECK(ran.out.substr(0, 33) == ran.out.substr(33));
    CHECK(ran.out.find_first_not_of("0123456789abcdef\n") == std::string::npos);
    return ran.out;
  };
  CHECK(id() != id());
}

TEST_CASE("two jobs cannot share a requested port") {
  const std::string port = std::to_string(accelerate::launch::ReservedPort(0).number());
  Child first(launcher({"--backend", "gloo", "--main_process_port", port, "sh", "-c", "echo up; exec sleep 300"}));
  REQUIRE(first.wait_for("up"));  // and no process listens
  const auto second = Child(launcher({"--backend", "gloo", "--main_process_port", port, "true"})).wait();
  CHECK(second.code == 1);
  CHECK(second.err.find("is in use on 127.0.0.1") != std::string::npos);
}

TEST_CASE("a launch that cannot start is reported with a shell's exit code") {
  const auto missing = launch({"--num_processes", "1", "./no_such_program"});
  CHECK(missing.code == 127);
  CHECK(missing.err == "accelerate_launch: ./no_such_program not found: No such file or directory\n");
  CHECK(launch({"/tmp"}).code == 126);
  const auto wrong = launch({"--num_processes", "0", "true"});
  CHECK(wrong.code == 2);
  CHECK(wrong.err == "accelerate_launch: --num_processes is '0', must be a whole number from 1 to 4096\n");
  CHECK(wrong.out == "");
  CHECK(launch({"--help"}).code == 0);
}

TEST_CASE("a file that the system cannot execute is refused") {
  char name[] = "/tmp/launcher_test.XXXXXX";
  close(mkstemp(name));
  std::ofstream(name) << "neither a script nor a program";
  chmod(name, 0755);
  const auto ran = launch({"--num_processes", "2", "--backend", "gloo", name});
  unlink(name);
  CHECK(ran.code == 126);
  CHECK(ran.err == "accelerate_launch: " + std::string(name) +
                       " cannot be run: it has no #! line, or is built for another machine\n");
}

TEST_CASE("a requested port that is in use is refused") {
  const int holder = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(bind(holder, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(listen(holder, 1) == 0);
  socklen_t length = sizeof address;
  getsockname(holder, reinterpret_cast<sockaddr*>(&address), &length);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const auto ran = Child(launcher({"--num_processes", "1", "--main_process_port", port, "true"})).wait();
  close(holder);
  CHECK(ran.code == 1);
  CHECK(ran.err == "accelerate_launch: --main_process_port " + port + " is in use on 127.0.0.1 by plain_tests (pid " +
                       std::to_string(getpid()) + "); give another, or 0 for a free one\n");
}

TEST_CASE("signals are forwarded to the ranks, and the launcher exits with their code") {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    CAPTURE(number);
    Child child(sleepers());
    REQUIRE(child.wait_for("ready"));
    kill(child.pid(), number);
    const auto ran = child.wait();
    CHECK(ran.code == 128 + number);
    CHECK(ran.err.find("after signal " + std::to_string(number) + " was forwarded.") != std::string::npos);
    if (number == SIGTERM) {
      CHECK(ran.err.find(") ended with signal 15 (terminated) after signal 15 was forwarded.\n") != std::string::npos);
    }
    for (const pid_t rank : numbers(ran.out, "pid")) CHECK(testing::gone(rank));
  }
}

TEST_CASE("the launcher exits with 0 if the ranks exit with 0 after a signal") {
  Child child(sleepers("trap 'echo saved; exit 0' TERM; "));
  REQUIRE(child.wait_for("ready"));
  kill(child.pid(), SIGTERM);
  const auto ran = child.wait();
  CHECK(ran.code == 0);
  CHECK(ran.err == "");
  CHECK(ran.out.find("saved\n") != std::string::npos);
}

TEST_CASE("a second signal kills ranks that ignore the first") {
  Child child(sleepers("trap '' INT; "));
  REQUIRE(child.wait_for("ready"));
  kill(child.pid(), SIGINT);
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  kill(child.pid(), SIGINT);
  CHECK(child.wait().code == 128 + SIGKILL);
}

TEST_CASE("a signal to all processes of a job, as from Slurm, counts as one request") {
  Child child(
      launcher({"--backend", "gloo", "--main_process_port", "0", "sh", "-c",
                "trap 'sleep 0.5; echo saved; exit 0' TERM; echo guardian $PPID; while :; do sleep 0.1; done"}));
  REQUIRE(child.wait_for("guardian "));
  REQUIRE(child.wait_for("\n"));
  const auto guardian = numbers(child.out(), "guardian").at(0);
  kill(guardian, SIGTERM);
  kill(child.pid(), SIGTERM);
  const auto ran = child.wait();
  CHECK(ran.code == 0);
  CHECK(ran.out.ends_with("saved\n"));
}

TEST_CASE("ranks of a killed launcher have their grace time, although another process requests the end too") {
  Child child(
      launcher({"--backend", "gloo", "--main_process_port", "0", "sh", "-c",
                "trap 'echo heard; sleep 0.5; echo saved; exit 0' TERM; echo guardian $PPID; while :; do sleep 0.1; "
                "done"}));
  REQUIRE(child.wait_for("guardian "));
  REQUIRE(child.wait_for("\n"));
  const auto guardian = numbers(child.out(), "guardian").at(0);
  kill(child.pid(), SIGKILL);
  REQUIRE(child.wait_for("heard"));
  kill(guardian, SIGTERM);
  CHECK(child.wait().out.ends_with("saved\n"));
}

TEST_CASE("a signal that arrives twice at once, as from timeout(1), is one request") {
  Child child(sleepers("trap 'sleep 0.5; echo saved; exit 0' TERM; "));
  REQUIRE(child.wait_for("ready"));
  kill(child.pid(), SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(10));  // otherwise they would be merged into one signal
  kill(child.pid(), SIGTERM);
  const auto ran = child.wait();
  CHECK(ran.code == 0);
  CHECK(ran.out.find("saved\n") != std::string::npos);
}

TEST_CASE("SIGHUP of a closed terminal, from the shell and the system, is one request") {
  Child child(sleepers("trap 'echo heard; sleep 0.5; echo saved; exit 0' HUP; "));
  REQUIRE(child.wait_for("ready"));
  kill(child.pid(), SIGHUP);
  REQUIRE(child.wait_for("heard"));
  CHECK(Child({"sh", "-c", "kill -HUP " + std::to_string(child.pid())}).wait().code == 0);  // another sender
  const auto ran = child.wait();
  CHECK(ran.code == 0);
  CHECK(ran.out.find("saved\n") != ran.out.rfind("saved\n"));  // both ranks
}

TEST_CASE("the user can set the grace time") {
  const auto ran = launch({"--num_processes", "2", "--backend", "gloo", "--grace_time", "0.1", "sh", "-c",
                           "trap '' TERM; [ $RANK = 0 ] && sleep 0.5 && exit 5; sleep 3; echo the default is longer"});
  CHECK(ran.code == 5);
  CHECK(ran.out == "");
}

TEST_CASE("all ranks restart after a failure with a new port, job id and restart count") {
  const auto ran =
      launch({"--num_processes", "2", "--backend", "gloo", "--max_restarts", "2", "sh", "-c",
              "echo start $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; echo port $MASTER_PORT; "
              "echo id $ACCELERATE_JOB_ID; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || sleep 300 & "
              "[ $TORCHELASTIC_RESTART_COUNT = 1 ] || [ $RANK = 1 ] || { sleep 0.5; exit 4; }; wait"});
  CAPTURE(ran.err);
  CHECK(ran.code == 0);
  CHECK(ran.err.find("accelerate_launch: restart 1 of 2 in 0.5 s\n") != std::string::npos);
  std::istringstream words(ran.out);
  std::map<std::string, int> lines;
  for (std::string line; std::getline(words, line);) ++lines[line];
  CHECK(lines["start 0 of 2"] == 2);
  CHECK(lines["start 1 of 2"] == 2);
  CHECK(lines.size() == 6);  // two starts, two ports, two ids
}

TEST_CASE("repeated early failures stop the restarts, and the reason is reported") {
  const auto ran = launch({"--num_processes", "2", "--backend", "gloo", "--max_restarts", "9", "false"});
  CHECK(ran.code == 1);
  CHECK(
      ran.err.ends_with("accelerate_launch: no restart: the last 3 starts ended within 10 s, all with exit code 1; 7 "
                        "of 9 restarts are left unused\n"));
}

TEST_CASE("ranks may end with the resume code without being stopped, and all restart") {
  const auto ran = launch({"--num_processes", "2", "--backend", "gloo", "--resume_code", "75", "sh", "-c",
                           "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; [ $RANK = 0 ] && exit 75; "
                           "trap 'echo stopped' TERM; sleep 1 & wait $!; echo saved; exit 75"});
  CHECK(ran.code == 0);
  CHECK(ran.out == "saved\n");
  CHECK(ran.err == "accelerate_launch: the ranks requested a restart (exit code 75) in 0.5 s\n");
}

TEST_CASE("a failed rank is a failure, also if others request a restart") {
  const auto ran = launch({"--num_processes", "2", "--backend", "gloo", "--resume_code", "75", "sh", "-c",
                           "[ $RANK = 0 ] && exit 75; sleep 0.5; exit 3"});
  CHECK(ran.code == 3);
  CHECK(ran.err.find(") failed first, exit code 3, after worker 0 had ended") != std::string::npos);
}

TEST_CASE("repeated early restart requests end the job") {
  const auto ran = launch({"--resume_code", "75", "--backend", "gloo", "--num_processes", "1", "sh", "-c", "exit 75"});
  CHECK(ran.code == 75);
  CHECK(
      ran.err.ends_with("accelerate_launch: no restart: the last 3 starts ended within 10 s, all with exit code 75\n"));
}

TEST_CASE("after a signal the launcher exits with the resume code") {
  for (const int number : {SIGTERM, SIGUSR1}) {
    CAPTURE(number);
    Child child(launcher({"--num_processes", "2", "--backend", "gloo", "--main_process_port", "0", "--resume_code",
                          "75", "sh", "-c",
                          "trap 'sleep 0.$((RANK * 3)); echo saved; exit 75' TERM USR1; [ $RANK = 1 ] && sleep 0.5; "
                          "echo up; while :; do sleep 0.1; done"}));
    REQUIRE(child.wait_for("up\nup\n"));
    kill(child.pid(), number);
    const auto ran = child.wait();
    CHECK(ran.code == 75);
    CHECK(ran.out == "up\nup\nsaved\nsaved\n");
    CHECK(ran.err.ends_with("accelerate_launch: the ranks ended with exit code 75 after signal " +
                            std::to_string(number) + " was forwarded; they request a restart\n"));
    CHECK(ran.err.find("accelerate_launch") == ran.err.rfind("accelerate_launch"));
  }
}

TEST_CASE("a job does not restart after a request to end it") {
  Child child(launcher({"--backend", "gloo", "--main_process_port", "0", "--max_restarts", "3", "sh", "-c",
                        "echo ready; exec sleep 300"}));
  REQUIRE(child.wait_for("ready"));
  kill(child.pid(), SIGTERM);
  const auto ran = child.wait();
  CHECK(ran.code == 128 + SIGTERM);
  CHECK(ran.err.find("restart") == std::string::npos);
}

TEST_CASE("SIGUSR1 and SIGUSR2 reach the ranks without ending the job, any number of times") {
  Child child(launcher({"--num_processes", "2", "--backend", "gloo", "--main_process_port", "0", "sh", "-c",
                        "n=0; trap 'n=$((n+1))' USR1; trap 'echo rank $RANK had $n; exit 0' USR2; echo up; "
                        "[ $RANK = 1 ] && sleep 0.5 && echo ready; while :; do sleep 0.1; done"}));
  REQUIRE(child.wait_for("ready"));
  for (int i = 0; i < 3; ++i) {
    kill(child.pid(), SIGUSR1);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  kill(child.pid(), SIGUSR2);
  const auto ran = child.wait();
  CHECK(ran.code == 0);
  CHECK(ran.err.find("accelerate_launch") == std::string::npos);
  CHECK(ran.out.find("rank 0 had 3\n") != std::string::npos);
  CHECK(ran.out.find("rank 1 had 3\n") != std::string::npos);
}

TEST_CASE("a user's variable that the command line overrides is reported once") {
  const auto ran = launch({"--num_processes", "1", "--gradient_accumulation_steps", "2", "sh", "-c",
                           "echo $ACCELERATE_GRADIENT_ACCUMULATION_STEPS"},
                          {{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "8"}});
  CHECK(ran.out == "2\n");
  CHECK(ran.err ==
        "accelerate_launch: gradient_accumulation_steps is 2 from the command line; not used: 8 in "
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS\n");
}

TEST_CASE("an invalid setting in the environment is refused before a rank starts") {
  const auto ran = launch({"echo", "started"}, {{"ACCELERATE_BACKEND", "nonsense"}});
  CHECK(ran.code == 1);
  CHECK(ran.out == "");
  CHECK(ran.err == "accelerate_launch: settings: ACCELERATE_BACKEND is 'nonsense', must be mpi, gloo or nccl\n");
}

TEST_CASE("the first failed rank is named if several end while the launcher is suspended") {
  Child child(launcher({"--num_processes", "2", "--backend", "gloo", "--main_process_port", "0", "sh", "-c",
                        "echo rank$RANK $$; [ $RANK = 1 ] && sleep 0.5 && echo ready; exec sleep 300"}));
  REQUIRE(child.wait_for("ready"));
  const auto innocent = numbers(child.out(), "rank0");
  const auto first = numbers(child.out(), "rank1");
  REQUIRE(innocent.size() == 1);
  REQUIRE(first.size() == 1);
  kill(child.pid(), SIGSTOP);
  kill(first[0], SIGKILL);
  REQUIRE(testing::gone(first[0]));
  kill(innocent[0], SIGTERM);
  REQUIRE(testing::gone(innocent[0]));
  kill(child.pid(), SIGCONT);
  const auto ran = child.wait();
  CAPTURE(ran.err);
  CHECK(ran.code == 128 + SIGKILL);
  CHECK(ran.err.starts_with("accelerate_launch: worker 1 ("));
}

TEST_CASE("exited ranks are detected if SIGCHLD is inherited as ignored") {
  struct sigaction ignore {};
  struct sigaction before {};
  ignore.sa_handler = SIG_IGN;
  sigaction(SIGCHLD, &ignore, &before);
  Child child(
      launcher({"--main_process_port", "0", "--backend", "gloo", "--num_processes", "2", "sh", "-c", "exit 3"}));
  sigaction(SIGCHLD, &before, nullptr);
  CHECK(child.wait(std::chrono::seconds(20)).code == 3);
}

TEST_CASE("the soft limit of open files is raised for the launcher only") {
  const auto ran = Child({"sh", "-c",
                          "ulimit -Sn 40; exec " TEST_BINARY_DIR
                          "/bin/accelerate_launch --main_process_port 0 --backend gloo --num_processes 20 sh -c "
                          "'ulimit -Sn'"})
                       .wait();
  CAPTURE(ran.err);
  CHECK(ran.code == 0);
  std::string expected;
  for (int rank = 0; rank < 20; ++rank) expected += "40\n";
  CHECK(ran.out == expected);
}

TEST_CASE("a too low file limit is an error before a rank starts") {
  const auto ran =
      Child({"sh", "-c",
             "ulimit -n 100; exec " TEST_BINARY_DIR
             "/bin/accelerate_launch --main_process_port 0 --backend gloo --num_processes 20 echo started"})
          .wait();
  CHECK(ran.code == 1);
  CHECK(ran.out == "");
  CHECK(ran.err.ends_with(
      "accelerate_launch: 20 ranks need 108 open files in the launcher, the limit is 100; start fewer, or raise the "
      "hard limit (ulimit -Hn)\n"));
}

TEST_CASE("a file limit without room for a pipe is refused with the required number") {
  for (const char* limit : {"8", "10", "12"}) {
    CAPTURE(limit);
    const auto ran = Child({"sh", "-c",
                            "ulimit -n " + std::string(limit) +
                                "; exec " TEST_BINARY_DIR "/bin/accelerate_launch --backend gloo --num_processes 1 "
                                "--main_process_port 0 echo started"})
                         .wait();
    CAPTURE(ran.err);
    CHECK(ran.code == 1);
    CHECK(ran.out == "");
    CHECK(ran.err.find(limit) != std::string::npos);
    CHECK(ran.err.find("ulimit -") != std::string::npos);
    CHECK(ran.err.find("51") != std::string::npos);
  }
}

TEST_CASE("a dry run in a removed folder reports the folder") {
  const testing::Scratch scratch;
  const auto folder = scratch.path + "/gone";
  const auto ran =
      Child({"sh", "-c",
             "mkdir " + folder + " && cd " + folder + " && rmdir " + folder +
                 " && exec " TEST_BINARY_DIR "/bin/accelerate_launch --cpu --num_processes 1 --dry_run true"})
          .wait();
  CHECK(ran.code == 1);
  CHECK(ran.out == "");
  CHECK(ran.err ==
        "accelerate_launch: the folder that this was started in cannot be named: No such file or directory; cd to an "
        "existing one\n");
}

TEST_CASE("no rank survives a killed launcher") {
  std::vector<pid_t> ranks;
  {
    Child child(launcher({"--num_processes", "2", "--backend", "gloo", "--main_process_port", "0", "sh", "-c",
                          "echo pid $$; [ $RANK = 1 ] && sleep 0.5 && echo ready; exec sleep 300"}));
    REQUIRE(child.wait_for("ready"));
    ranks = numbers(child.out(), "pid");
    kill(child.pid(), SIGKILL);
    for (const pid_t rank : ranks) CHECK(testing::gone(rank));
  }
  CHECK(ranks.size() == 2);
}

TEST_CASE("output is live: an incomplete line is forwarded while the rank runs") {
  Child child(launcher({"--num_processes", "2", "--backend", "gloo", "--main_process_port", "0", "sh", "-c",
                        "[ $RANK = 0 ] && printf '\\r 10 %%'; exec sleep 300"}));
  CHECK(child.wait_for("\r 10 %"));
}

TEST_CASE("rank 0 gets the launcher's stdin, the others none") {
  Child child({"sh", "-c",
               "echo hello | " TEST_BINARY_DIR
               "/bin/accelerate_launch --main_process_port 0 --backend gloo --num_processes 2 "
               "sh -c 'sleep 0.$((RANK * 3)); echo $RANK $(cat)'"});
  const auto ran = child.wait();
  CHECK(ran.out == "0 hello\n1\n");
}

TEST_CASE("ranks end with SIGPIPE if the reader exits, as without a launcher") {
  Child child({"sh", "-c",
               TEST_BINARY_DIR "/bin/accelerate_launch --main_process_port 0 --backend gloo --num_processes 2 "
                               "sh -c 'while :; do echo line || exit; sleep 0.01; done' | head -n 1"});
  CHECK(child.wait().out == "line\n");
}

TEST_CASE("ranks have a terminal if the launcher has one") {
  const auto test = Words{"sh", "-c", "if [ -t 1 ]; then echo terminal; else echo pipe; fi"};
  Words piped{"--backend", "gloo"};
  piped.insert(piped.end(), test.begin(), test.end());
  CHECK(launch(piped).out == "pipe\n");

  const int ours = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(ours >= 0);
  REQUIRE(grantpt(ours) == 0);
  REQUIRE(unlockpt(ours) == 0);
  const std::string name = ptsname(ours);
  Child child({"sh", "-c",
               TEST_BINARY_DIR "/bin/accelerate_launch --main_process_port 0 sh -c "
                               "'if [ -t 1 ]; then echo terminal; else echo pipe; fi' > " +
                   name});
  CHECK(child.wait().code == 0);
  char buffer[64]{};
  CHECK(read(ours, buffer, sizeof buffer - 1) > 0);
  CHECK(std::string(buffer) == "terminal\r\n");
  close(ours);
}

TEST_CASE("a dry run prints a script that starts the same ranks, and starts none itself") {
  const Words job{"--num_processes",
                  "2",
                  "--backend",
                  "gloo",
                  "--gradient_accumulation_steps",
                  "3",
                  "--",
                  "sh",
                  "-c",
                  "sleep 0.$((RANK * 3)); echo $RANK of $WORLD_SIZE, $ACCELERATE_GRADIENT_ACCUMULATION_STEPS, \"$1\"",
                  "x",
                  "it's $HOME"};
  Words dry{"--dry-run"};
  dry.insert(dry.end(), job.begin(), job.end());
  const auto script = launch(dry);
  CHECK(script.code == 0);
  CHECK(script.err == "");
  const auto ran = Child({"sh", "-c", script.out}).wait();
  CHECK(ran.code == 0);
  CHECK(ran.out == "0 of 2, 3, it's $HOME\n1 of 2, 3, it's $HOME\n");
  CHECK(ran.out == launch(job).out);
}

TEST_CASE("a config file is read from --config_file, and its settings reach the ranks as variables") {
  char name[] = "/tmp/launcher_test.XXXXXX";
  close(mkstemp(name));
  std::ofstream(name) << "num_processes: 2\nuse_cpu: true\nmixed_precision: bf16\nbackend: gloo\n";
  const Words show{"--config_file", name, "sh", "-c",
                   "echo $WORLD_SIZE $ACCELERATE_USE_CPU $ACCELERATE_MIXED_PRECISION "
                   "$ACCELERATE_CONFIG_FILE"};
  CHECK(launch(show).out == "2 1 bf16\n2 1 bf16\n");
  std::ofstream(name) << "num_processes: 2\nuse_cpu: true\nbackend: gloo\ndistributed_type: FSDP\n"
                         "fsdp_config: {fsdp_sharding_strategy: SHARD_GRAD_OP}\n";
  CHECK(launch({"--config_file", name, "sh", "-c", "echo $ACCELERATE_USE_FSDP $FSDP_SHARDING_STRATEGY"}).out ==
        "true SHARD_GRAD_OP\ntrue SHARD_GRAD_OP\n");
  std::ofstream(name) << "distributed_type: MEGATRON_LM\n";
  const auto refused = launch(show);
  CHECK(refused.code == 1);
  CHECK(refused.out == "");
  unlink(name);
  const auto missing = launch(show);
  CHECK(missing.code == 1);
  CHECK(missing.err == "accelerate_launch: settings: cannot read " + std::string(name) +
                           ", which --config_file names: No such file or directory\n");
}

TEST_CASE("ranks are bound to processors on request") {
  const auto ran = launch({"--num_processes", "2", "--backend", "gloo", "--enable_cpu_affinity", "sh", "-c",
                           "grep Cpus_allowed_list /proc/self/status"});
  CHECK(ran.code == 0);
  const auto middle = ran.out.find('\n');
  REQUIRE(middle != std::string::npos);
  if (std::thread::hardware_concurrency() > 1) CHECK(ran.out.substr(0, middle) != ran.out.substr(middle + 1, middle));
}

TEST_CASE("a log line lists the values that were chosen by default") {
  const auto ran = launch({"--cpu", "true"});
  CHECK(ran.code == 0);
  CHECK(ran.err == "accelerate_launch: 1 rank on the CPU; --num_processes N starts more\n");
}

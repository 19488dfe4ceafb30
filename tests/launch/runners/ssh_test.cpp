// SPDX-License-Identifier: Apache-2.0
// Hosts that are this machine, behind an ssh that only runs what it is given, by a login shell in a bare environment.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "launch/run/port.hpp"
#include "launch/runners/frames.hpp"
#include "tests/launch/run.hpp"

using accelerate::env::Variables;
using testing::Child;
using testing::launcher;
using Words = std::vector<std::string>;

namespace {

class FakeSsh {
 public:
  explicit FakeSsh(
      const std::string& body =
          "while [ \"$1\" != -- ]; do shift; done; host=$2; cd / && exec env -i HOME=/ FROM_HOST=\"$host\" "
          "sh -c \"$3\"") {
    char name[] = "/tmp/fake_ssh.XXXXXX";
    folder_ = mkdtemp(name);
    std::ofstream(folder_ + "/ssh") << "#!/bin/sh\n" << body << "\n";
    chmod((folder_ + "/ssh").c_str(), 0755);
  }
  ~FakeSsh() {
    unlink((folder_ + "/ssh").c_str());
    rmdir(folder_.c_str());
  }
  FakeSsh(const FakeSsh&) = delete;
  FakeSsh& operator=(const FakeSsh&) = delete;

  [[nodiscard]] Variables variables(Variables more = {}) const {
    more["PATH"] = folder_ + ":" + getenv("PATH");
    return more;
  }

 private:
  std::string folder_;
};

Words on_hosts(const std::string& hosts, const Words& command, const Words& more = {}) {
  const std::string port = std::to_string(accelerate::launch::ReservedPort(0).number());
  Words words{"--hosts", hosts, "--main_process_ip", "127.0.0.1", "--main_process_port", port, "--backend", "gloo"};
  words.insert(words.end(), more.begin(), more.end());
  words.insert(words.end(), command.begin(), command.end());
  return launcher(words);
}

std::vector<pid_t> pids(const std::string& text) {
  std::vector<pid_t> found;
  for (size_t at = text.find("pid "); at != std::string::npos; at = text.find("pid ", at + 1)) {
    found.push_back(static_cast<pid_t>(std::stol(text.substr(at + 4))));
  }
  return found;
}

}  // namespace

TEST_CASE("ranks of several hosts are one job, in the folder and with the environment of the launcher") {
  const FakeSsh ssh;
  const auto script =
      "sleep 0.$((RANK * 3)); echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $FROM_HOST $MINE $PWD";
  const auto ran = Child(on_hosts("a:2,b:1", {"sh", "-c", script}), ssh.variables({{"MINE", "yes"}})).wait();
  CAPTURE(ran.err);
  char folder[4096];
  const std::string here = getcwd(folder, sizeof folder);
  CHECK(ran.code == 0);
  CHECK(ran.out == "0 3 0 2 a yes " + here + "\n1 3 1 2 a yes " + here + "\n2 3 0 1 b yes " + here + "\n");
}

TEST_CASE("arguments and variables come through as they are, whatever they hold") {
  const FakeSsh ssh;
  for (const std::string word : {"a b", "it's", "\"", "$(touch /tmp/never)", "`id`", "a\nb\n\nc", "", "\\", "-n", "*",
                                 "a=b", "!x", "\xff\xfe\x01"}) {
    CAPTURE(word);
    const auto ran = Child(on_hosts("a:1", {"sh", "-c", "printf '%s|%s|' \"$1\" \"$HOSTILE\"", "x", word}),
                           ssh.variables({{"HOSTILE", word}}))
                         .wait();
    CHECK(ran.code == 0);
    CHECK(ran.out == word + "|" + word + "|");
  }
}

TEST_CASE("the first rank that fails decides, on whichever host") {
  const FakeSsh ssh;
  const auto ran =
      Child(on_hosts("a:1,b:1", {"sh", "-c", "[ $RANK = 1 ] && exit 7; exec sleep 300"}), ssh.variables()).wait();
  CHECK(ran.code == 7);
  CHECK(ran.err.find("worker 1") != std::string::npos);
}

TEST_CASE("the ranks of all hosts start again after one failed") {
  const FakeSsh ssh;
  char name[] = "/tmp/ssh_test.XXXXXX";
  const std::string folder = mkdtemp(name);
  const auto script = "[ $RANK = 1 ] && [ ! -e " + folder + "/once ] && touch " + folder +
                      "/once && exit 7; echo up $TORCHELASTIC_RESTART_COUNT";
  const auto ran = Child(on_hosts("a:1,b:1", {"sh", "-c", script}, {"--max_restarts", "1"}), ssh.variables()).wait();
  unlink((folder + "/once").c_str());
  rmdir(folder.c_str());
  CHECK(ran.code == 0);
  CHECK(ran.out.ends_with("up 1\nup 1\n"));
}

TEST_CASE("signals reach the ranks on all hosts, which may end well on them") {
  const FakeSsh ssh;
  Child child(on_hosts("a:1,b:1", {"sh", "-c", "trap 'echo saved; exit 0' TERM; echo up; sleep 300 & wait"}),
              ssh.variables());
  REQUIRE(child.wait_for("up\nup\n"));
  kill(child.pid(), SIGTERM);
  const auto ran = child.wait();
  CHECK(ran.code == 0);
  CHECK(ran.out.find("saved\nsaved\n") != std::string::npos);
}

TEST_CASE("rank 0 reads the launcher's stdin") {
  const FakeSsh ssh;
  std::string line = "echo hello |";
  for (const auto& word : on_hosts("a:1,b:1", {"sh", "-c", "'sleep 0.$((RANK * 3)); echo $RANK $(cat)'"}))
    line += " " + word;
  CHECK(Child({"sh", "-c", line}, ssh.variables()).wait().out == "0 hello\n1\n");
}

TEST_CASE("no rank outlives a launcher that was killed") {
  const FakeSsh ssh;
  std::vector<pid_t> ranks;
  {
    Child child(on_hosts("a:1,b:1", {"sh", "-c", "echo rank$RANK pid $$; exec sleep 300"}), ssh.variables());
    REQUIRE(child.wait_for("rank0 pid"));
    REQUIRE(child.wait_for("rank1 pid"));
    ranks = pids(child.out());
    kill(child.pid(), SIGKILL);
    CHECK(ranks.size() == 2);
    for (const pid_t rank : ranks) CHECK(testing::gone(rank));
  }
}

TEST_CASE("a dry run prints what a shell can run over the same ssh") {
  const FakeSsh ssh;
  const Words command{"sh", "-c", "sleep 0.$((RANK * 3)); echo $RANK of $WORLD_SIZE on $FROM_HOST: \"$1\"", "x",
                      "it's $HOME"};
  const auto script = Child(on_hosts("a:1,b:1", command, {"--dry_run"}), ssh.variables()).wait();
  CHECK(script.code == 0);
  const auto ran = Child({"sh", "-c", script.out}, ssh.variables()).wait();
  CAPTURE(ran.err);
  CHECK(ran.code == 0);
  CHECK(ran.out == "0 of 2 on a: it's $HOME\n1 of 2 on b: it's $HOME\n");
}

TEST_CASE("a host that cannot be reached is named") {
  const FakeSsh ssh("while [ \"$1\" != -- ]; do shift; done; [ $2 = b ] && exit 255; exec sleep 300");
  const auto ran = Child(on_hosts("a:1,b:1", {"true"}), ssh.variables()).wait();
  CHECK(ran.code == 255);
  CHECK(ran.err.find("accelerate_launch: ssh to b ended after ") != std::string::npos);
  CHECK(ran.err.find(" s: the host could not be reached, let us not in, or the connection was lost\n") !=
        std::string::npos);
}

TEST_CASE("without ssh the runner says what it needs") {
  const auto ran = Child(on_hosts("a:1", {"true"}), {{"PATH", "/nowhere"}}).wait();
  CHECK(ran.code == 1);
  CHECK(ran.err == "accelerate_launch: --runner ssh needs ssh, which is not in PATH (Debian package openssh-client)\n");
}

TEST_CASE("an agent refuses a launcher of another version, and junk") {
  using namespace accelerate::launch;
  const auto agent = [](const std::string& bytes) {
    char name[] = "/tmp/agent_input.XXXXXX";
    close(mkstemp(name));
    std::ofstream(name, std::ios::binary) << bytes;
    const auto ran =
        Child({"sh", "-c", "exec " TEST_BINARY_DIR "/bin/accelerate_launch --agent < " + std::string(name)}).wait();
    unlink(name);
    CHECK(ran.code == 1);
    return ran.err;
  };
  CHECK(agent(bytes_of(frame_of({.version = "9.9", .folder = "/"})))
            .find(", the host that starts the job has 9.9; they must be the same\n") != std::string::npos);
  CHECK(agent("Last login: today\n") ==
        "accelerate_launch: what comes over the connection is not from accelerate_launch; does a shell start-up file "
        "print?\n");
  CHECK(agent("") == "accelerate_launch: nobody said what to start\n");
}

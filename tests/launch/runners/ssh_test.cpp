// SPDX-License-Identifier: Apache-2.0
// Hosts that are this machine, behind a fake ssh that runs its command in a login shell with an empty environment.
#include <doctest/doctest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "accelerate/base/error.hpp"
#include "launch/plan/options.hpp"
#include "launch/run/port.hpp"
#include "launch/runners/frames.hpp"
#include "tests/launch/run.hpp"
#include "tests/launch/scratch.hpp"

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
          "TMPDIR=\"${TMPDIR:-/tmp}\" sh -c \"$3\"") {
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

/// One rank on each of two hosts, each with a process in its own session; both print their pids.
const Words with_daemons{"sh", "-c",
                         "export RANK; setsid sh -c 'echo daemon$RANK pid $$; exec sleep 300' & "
                         "echo rank$RANK pid $$; exec sleep 300"};

/// Process ids of both ranks and both daemons.
std::vector<pid_t> ranks_and_daemons(Child& child) {
  for (const char* each : {"rank0 pid", "rank1 pid", "daemon0 pid", "daemon1 pid"}) REQUIRE(child.wait_for(each));
  const auto found = pids(child.out());
  REQUIRE(found.size() == 4);
  return found;
}

/// The process with this word in its command line, and this host there or in its environment.
pid_t process_with(const std::string& word, const std::string& host) {
  const auto contents = [](const std::filesystem::path& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const auto command = contents(entry.path() / "cmdline");
    const auto all = command + contents(entry.path() / "environ");
    if (command.find(word + '\0') != std::string::npos && all.find(host + '\0') != std::string::npos) {
      return static_cast<pid_t>(std::stol(entry.path().filename()));
    }
  }
  return 0;
}

}  // namespace

TEST_CASE("ranks of several hosts form one job in the launcher's folder and environment") {
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

TEST_CASE("arguments and variables with any content arrive unchanged") {
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

TEST_CASE("a launcher and a folder may have any name") {
  const FakeSsh ssh;
  const testing::Scratch scratch;
  const std::string folder = scratch.path + "/a b'$(touch never)\"\n";
  std::filesystem::create_directory(folder);
  std::filesystem::copy_file(TEST_BINARY_DIR "/bin/accelerate_launch", folder + "/accelerate_launch");
  auto words = on_hosts("a:1", {"sh", "-c", "printf '%s' \"$PWD\""});
  words.front() = "./accelerate_launch";
  words.insert(words.begin(), {"env", "-C", folder});
  const auto ran = Child(words, ssh.variables()).wait();
  CAPTURE(ran.err);
  CHECK(ran.code == 0);
  CHECK(ran.out == folder);
  CHECK_FALSE(std::filesystem::exists(folder + "/never"));
}

TEST_CASE("the first failed rank determines the result; its host names it, the main launcher lists the machines") {
  const FakeSsh ssh;
  const auto ran =
      Child(on_hosts("a:1,b:1", {"sh", "-c", "[ $RANK = 1 ] && exit 7; exec sleep 300"}), ssh.variables()).wait();
  CAPTURE(ran.err);
  CHECK(ran.code == 7);
  CHECK(ran.err.find("accelerate_launch: worker 1 (") != std::string::npos);
  // Both launchers exit with the code; the order in which their ends are detected is random.
  const auto report = std::max(ran.err.rfind("accelerate_launch: machine 0 (a, ") + 1,
                               ran.err.rfind("accelerate_launch: machine 1 (b, ") + 1);
  REQUIRE(report > 0);
  const auto tail = ran.err.substr(ran.err.find(')', report));
  CHECK((tail == ") ended with exit code 7.\n" || tail == ") ended with exit code 7; the others were stopped.\n"));
}

TEST_CASE("each host handles its output: labels, log files, filter, hang detection, quiet") {
  const FakeSsh ssh;
  const testing::Scratch scratch;
  const auto ran = Child(on_hosts("a:2,b:1", {"sh", "-c", "echo out $RANK; echo err $RANK >&2"},
                                  {"--label", "--log_dir", scratch.path, "--local_ranks_filter", "0", "--redirects",
                                   "2", "--tee", "1", "--hang_timeout", "60", "--quiet"}),
                         ssh.variables({{"ACCELERATE_MIXED_PRECISION", "no"}}))
                       .wait();
  CHECK(ran.code == 0);
  CHECK((ran.out == "[rank 0] out 0\n[rank 2] out 2\n" || ran.out == "[rank 2] out 2\n[rank 0] out 0\n"));
  CHECK(ran.err == "");
  for (const std::string rank : {"0", "1", "2"}) {
    std::stringstream log;
    log << std::ifstream(scratch.path + "/rank_" + rank + ".log").rdbuf();
    CHECK((log.str() == "out " + rank + "\nerr " + rank + "\n" || log.str() == "err " + rank + "\nout " + rank + "\n"));
  }
}

TEST_CASE("ranks on all hosts restart on request") {
  const FakeSsh ssh;
  const auto ran = Child(on_hosts("a:1,b:1",
                                  {"sh", "-c",
                                   "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; sleep 0.$((RANK * 5)); "
                                   "echo saved; exit 75"},
                                  {"--resume_code", "75"}),
                         ssh.variables())
                       .wait();
  CHECK(ran.code == 0);
  CHECK(ran.out == "saved\nsaved\n");
  CHECK(ran.err == "accelerate_launch: the ranks requested a restart (exit code 75) in 0.5 s\n");
}

TEST_CASE("a single host counts attempts too, with the limits of the main launcher") {
  const FakeSsh ssh;
  const auto ran = Child(on_hosts("a:1",
                                  {"sh", "-c",
                                   "echo start $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; "
                                   "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 75; exit 7"},
                                  {"--resume_code", "75", "--max_restarts", "1"}),
                         ssh.variables())
                       .wait();
  CAPTURE(ran.err);
  CHECK(ran.code == 7);
  CHECK(ran.out == "start 0 of 1\nstart 1 of 1\nstart 2 of 1\n");
}

TEST_CASE("the ranks of all hosts restart after a failure") {
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

TEST_CASE("signals reach the ranks on all hosts, which may exit with 0") {
  const FakeSsh ssh;
  Child child(on_hosts("a:1,b:1", {"sh", "-c", "trap 'echo saved; exit 0' TERM; echo up; sleep 300 & wait"}),
              ssh.variables());
  REQUIRE(child.wait_for("up\nup\n"));
  kill(child.pid(), SIGTERM);
  const auto ran = child.wait();
  CHECK(ran.code == 0);
  CHECK(ran.out.find("saved\nsaved\n") != std::string::npos);
}

TEST_CASE("after a rank failed on one host, the ranks of the others have their grace time") {
  const FakeSsh ssh;
  const auto ran = Child(on_hosts("a:1,b:1", {"sh", "-c",
                                              "[ $RANK = 1 ] && sleep 0.5 && exit 3; "
                                              "trap 'sleep 1; echo saved; exit 4' TERM; sleep 300 & wait"}),
                         ssh.variables())
                       .wait();
  CAPTURE(ran.err);
  CHECK(ran.code == 3);
  CHECK(ran.out == "saved\n");
}

TEST_CASE("rank 0 gets the launcher's stdin") {
  const FakeSsh ssh;
  std::string line = "echo hello |";
  for (const auto& word : on_hosts("a:1,b:1", {"sh", "-c", "'sleep 0.$((RANK * 3)); echo $RANK $(cat)'"}))
    line += " " + word;
  CHECK(Child({"sh", "-c", line}, ssh.variables()).wait().out == "0 hello\n1\n");
}

TEST_CASE("a signal ends remote ranks, also behind unread input for rank 0") {
  const FakeSsh ssh;
  std::string line = "exec";
  for (const auto& word : on_hosts("a:1", {"sh", "-c", "'echo up; exec sleep 300'"})) line += " " + word;
  char name[] = "/tmp/ssh_input.XXXXXX";
  const int file = mkstemp(name);
  REQUIRE(ftruncate(file, off_t{64} << 20) == 0);
  close(file);
  Child child({"sh", "-c", line + " < " + name}, ssh.variables());
  REQUIRE(child.wait_for("up\n"));
  std::this_thread::sleep_for(std::chrono::seconds(1));  // fills all buffers
  kill(child.pid(), SIGTERM);
  CHECK(child.wait(std::chrono::seconds(30)).code == 128 + SIGTERM);
  unlink(name);
}

TEST_CASE("no remote process survives a killed launcher") {
  const FakeSsh ssh;
  const testing::Scratch scratch(testing::in_memory);
  Child child(on_hosts("a:1,b:1", with_daemons), ssh.variables(scratch.variables()));
  const auto all = ranks_and_daemons(child);
  CHECK_FALSE(scratch.empty());
  const auto [took, a_second] =
      testing::time_until([&] { return std::none_of(all.begin(), all.end(), testing::alive) && scratch.empty(); },
                          [&] { kill(child.pid(), SIGKILL); });
  MESSAGE("gone after " << took.count() << " ms; allowed: " << a_second.count());
  CHECK(took <= a_second);
}

TEST_CASE("no remote process survives if any process between launcher and host is killed") {
  const FakeSsh ssh;
  const testing::Scratch scratch(testing::in_memory);
  const std::string host = "a" + std::to_string(getpid());
  for (const std::string word : {"--relay", "--agent"}) {
    CAPTURE(word);
    Child child(on_hosts(host + ":1,b:1", with_daemons), ssh.variables(scratch.variables()));
    const auto all = ranks_and_daemons(child);
    CHECK_FALSE(scratch.empty());
    const pid_t victim = process_with(word, host);
    REQUIRE(victim > 0);
    const auto [took, a_second] =
        testing::time_until([&] { return std::none_of(all.begin(), all.end(), testing::alive) && scratch.empty(); },
                            [&] { kill(victim, SIGKILL); });
    MESSAGE("gone after " << took.count() << " ms; allowed: " << a_second.count());
    CHECK(took <= a_second);
    CHECK(child.wait().code != 0);
  }
}

TEST_CASE("a dry run prints commands that a shell can run over the same ssh") {
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

TEST_CASE("a dry run over ssh prints no values of the user's variables, and its script forwards them unchanged") {
  const FakeSsh ssh;
  for (const std::string value : {"my-secret", "it's my-secret", "my-secret\n", "$(touch /tmp/never) `my-secret` \"\\",
                                  "\nmy-secret\xff", " *my-secret* "}) {
    CAPTURE(value);
    const auto variables = ssh.variables({{"HF_TOKEN", value}, {"NOTHING", ""}, {"BASH_FUNC_x%%", "() { :; }"}});
    const Words command{"sh", "-c", "printf '%s|%s|' \"$HF_TOKEN\" ${NOTHING+set}"};
    const auto script = Child(on_hosts("a:1", command, {"--dry_run"}), variables).wait();
    CHECK(script.code == 0);
    CHECK(script.out.find("my-secret") == std::string::npos);
    CHECK(script.out.find(" HF_TOKEN ") != std::string::npos);
    CHECK(script.out.find("BASH_FUNC_x%%") == std::string::npos);  // not a valid name in a shell
    const auto ran = Child({"sh", "-c", script.out}, variables).wait();
    CAPTURE(ran.err);
    CHECK(ran.out == value + "|set|");
  }
}

TEST_CASE("an unreachable host is named with the time that passed") {
  const FakeSsh ssh("while [ \"$1\" != -- ]; do shift; done; [ $2 = b ] && sleep 1 && exit 255; exec sleep 300");
  const auto ran = Child(on_hosts("a:1,b:1", {"true"}), ssh.variables()).wait();
  CHECK(ran.code == 255);
  CAPTURE(ran.err);
  CHECK(std::regex_search(ran.err,
                          std::regex("(^|\n)accelerate_launch: ssh to b ended after [1-9][.][0-9] s: the host was "
                                     "unreachable or refused the login, the connection was lost, or a rank ended "
                                     "with 255\n")));
}

TEST_CASE("without ssh the runner names the missing program") {
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
  const std::string ours =
      parse_arguments({"--version"}).print.value().substr(std::string("accelerate_launch ").size());
  CHECK(agent(encode_frame(frame_of({.version = "9.9", .folder = "/"}))) ==
        "accelerate_launch: " + accelerate::base::host_name() + " has accelerate_launch " +
            ours.substr(0, ours.size() - 1) + ", the host that starts the job has 9.9; they must be the same\n");
  CHECK(agent(encode_frame(frame_of({.version = ours.substr(0, ours.size() - 1), .folder = "/no such"}))) ==
        "accelerate_launch: /no such on " + accelerate::base::host_name() +
            ": No such file or directory; the folder must exist as on the host that starts the job\n");
  CHECK(agent("Last login: today\n") ==
        "accelerate_launch: the data on the connection is not from accelerate_launch; does a shell start-up file print "
        "text?\n");
  CHECK(agent("") == "accelerate_launch: no job was received\n");
}

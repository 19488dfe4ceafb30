// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/hosts.hpp"

#include <doctest/doctest.h>

#include "launch/plan/error.hpp"

using namespace accelerate::launch;
using Hosts = std::vector<HostSlots>;
using Ranks = std::vector<int64_t>;

namespace {

template <typename Function>
std::string refusal(Function function, int code = 2) {
  try {
    function();
  } catch (const LaunchError& error) {
    CHECK(error.exit_code() == code);
    return error.what();
  }
  return "";
}

std::string wrong_line(const std::string& text) {
  return refusal([&] { (void)parse_hostfile(text, "hosts"); });
}

}  // namespace

TEST_CASE("a host file has lines of hosts with slots, comments and empty lines") {
  CHECK(parse_hostfile("# mine\ngpu-a slots=4\n\n  user@gpu-b.x.org:2  # two\r\n10.0.0.3 slots=1 max_slots=2\nfd77::1\n"
                       "[fd77::2]:3",
                       "hosts") ==
        Hosts{{"gpu-a", 4}, {"user@gpu-b.x.org", 2}, {"10.0.0.3", 1}, {"fd77::1", 0}, {"fd77::2", 3}});
}

TEST_CASE("a host that is listed twice has the slots of both lines") {
  CHECK(parse_hostfile("a slots=1\nb\na slots=2\n", "hosts") == Hosts{{"a", 3}, {"b", 0}});
}

TEST_CASE("a repeated line is one slot each time, as in a Torque node file") {
  auto hosts = parse_hostfile("a\na\na\nb\n", "hosts");
  CHECK(hosts == Hosts{{"a", 3}, {"b", 0}});
  CHECK(fill_hosts(hosts, 0) == Ranks{3, 1});
  CHECK(hosts == Hosts{{"a", 3}, {"b", 1}});
  CHECK(parse_hostfile("a\nb\na\nb\n", "hosts") == Hosts{{"a", 2}, {"b", 2}});
  CHECK(parse_hostfile("a slots=2\na\n", "hosts") == Hosts{{"a", 3}});
  CHECK(parse_hostfile("a\na slots=2\n", "hosts") == Hosts{{"a", 3}});
  CHECK(parse_hosts("a,b,a") == Hosts{{"a", 2}, {"b", 0}});
}

TEST_CASE("an unknown key of a host is an error with the line and the known keys") {
  CHECK(wrong_line("a slots=2\nb lots=8\n") ==
        "accelerate_launch: hosts line 2 is 'b lots=8'; the key 'lots' is unknown, must be slots or max_slots");
  CHECK(wrong_line("b slots=8 gpus=2\n") ==
        "accelerate_launch: hosts line 1 is 'b slots=8 gpus=2'; the key 'gpus' is unknown, must be slots or max_slots");
  CHECK(wrong_line("b max_slots=x\n") ==
        "accelerate_launch: hosts line 1 is 'b max_slots=x', must be like 'gpu-a slots=4'");
  CHECK(parse_hostfile("a slots=2 max-slots=4\nb max_slots=4\n", "hosts") == Hosts{{"a", 2}, {"b", 0}});
}

TEST_CASE("an invalid line is refused with its number") {
  CHECK(wrong_line("gpu-a\n\ngpu b\n") == "accelerate_launch: hosts line 3 is 'gpu b', must be like 'gpu-a slots=4'");
  CHECK(wrong_line("gpu-a slots=0\n") ==
        "accelerate_launch: hosts line 1 is 'gpu-a slots=0', must be like 'gpu-a slots=4'");
  for (const char* line : {"a slots=x", "a slots=5000", "a:0", "a:", "a:x", "-oProxyCommand=x", "a;b", "$(a)",
                           "a slots", "a =4", "[a", "[a]4", "'a'", "a\tb", ":4"}) {
    CAPTURE(line);
    CHECK(wrong_line(line).starts_with("accelerate_launch: hosts line 1 is '"));
  }
  CHECK(wrong_line("# nobody\n") == "accelerate_launch: hosts names no host; its lines are like 'gpu-a slots=4'");
  CHECK(wrong_line("a\x01 b") == "accelerate_launch: hosts line 1 is 'a? b', must be like 'gpu-a slots=4'");
  CHECK(refusal([] { (void)read_hostfile("/nowhere/hosts"); }, 1) ==
        "accelerate_launch: cannot read the host file /nowhere/hosts: No such file or directory");
  CHECK(refusal([] { (void)read_hostfile("/tmp"); }, 1) ==
        "accelerate_launch: cannot read the host file /tmp: Is a directory");
}

TEST_CASE("~ in a host file's path is expanded as by a shell") {
  CHECK(with_home("~/hostfile", "/root") == "/root/hostfile");
  CHECK(with_home("~", "/root") == "/root");
  CHECK(with_home("~someone/hostfile", "/root") == "~someone/hostfile");
  CHECK(with_home("a/~/b", "/root") == "a/~/b");
  CHECK(with_home("~/hostfile", std::nullopt) == "~/hostfile");
}

TEST_CASE("a list of hosts is parsed, and an invalid entry named") {
  CHECK(parse_hosts("gpu-a:4,gpu-b") == Hosts{{"gpu-a", 4}, {"gpu-b", 0}});
  CHECK(parse_hosts("[::1]:2,[fd77::1]") == Hosts{{"::1", 2}, {"fd77::1", 0}});
  CHECK(refusal([] { (void)parse_hosts("gpu-a,::1:2"); }) ==
        "accelerate_launch: --hosts has '::1:2'; an IPv6 address must be in brackets, [::1:2] or [...]:4 with its "
        "ranks");
  CHECK(refusal([] { (void)parse_hosts("gpu-a,,b"); }) ==
        "accelerate_launch: --hosts has '', must be like gpu-a:4,gpu-b:4");
  CHECK(refusal([] { (void)parse_hosts("gpu-a,-x"); }) ==
        "accelerate_launch: --hosts has '-x', must be like gpu-a:4,gpu-b:4");
}

TEST_CASE("slots are filled in order, and hosts without ranks are omitted") {
  const auto fill = [](Hosts hosts, int64_t processes) { return fill_hosts(hosts, processes); };
  CHECK(fill({{"a", 2}, {"b", 3}}, 0) == Ranks{2, 3});
  CHECK(fill({{"a", 2}, {"b", 3}}, 4) == Ranks{2, 2});
  CHECK(fill({{"a", 2}, {"b", 0}}, 0) == Ranks{2, 1});
  CHECK(fill({{"a", 0}, {"b", 0}}, 4) == Ranks{2, 2});
  CHECK(fill({{"a", 0}, {"b", 0}}, 0).empty());
  Hosts three{{"a", 2}, {"b", 3}, {"c", 1}};
  CHECK(fill_hosts(three, 2) == Ranks{2});
  CHECK(three == Hosts{{"a", 2}});
  CHECK(refusal([&] {
          fill({{"a", 2}, {"b", 3}}, 6);
        }) == "accelerate_launch: num_processes is 6, but the hosts have 5 slots");
  CHECK(refusal([&] {
          fill({{"a", 0}, {"b", 0}}, 3);
        }) == "accelerate_launch: num_processes is 3 on 2 hosts, must be a multiple of 2, or set slots for the hosts");
  CHECK(fill({{"a", 4096}, {"b", 4096}}, 4096) == Ranks{4096});
  CHECK(refusal([&] {
          fill({{"a", 4096}, {"b", 4096}}, 0);
        }) ==
        "accelerate_launch: the hosts have 8192 slots, a job has at most 4096 ranks; give --num_processes, or fewer "
        "slots");
}

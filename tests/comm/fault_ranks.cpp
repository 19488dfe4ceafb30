// SPDX-License-Identifier: Apache-2.0
// One rank of a job that goes wrong on purpose; faults_test.cpp starts it. Prints the errors it gets, exits with 3.
#include <ATen/ops/ones.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <thread>

#include "accelerate/comm/group.hpp"

namespace {

using accelerate::comm::Group;
using namespace std::chrono_literals;

void say(const accelerate::Error& error) {
  std::printf("%s: %s\n", std::string(name(error.kind())).c_str(), error.what());
  std::fflush(stdout);
}

void late(const Group& group) {
  if (group.rank() == 1) {
    std::this_thread::sleep_for(8s);
    std::puts("rank 1 slept to the end");
    std::fflush(stdout);
    _exit(0);
  }
  try {
    group.all_reduce(at::ones({4}));
  } catch (const accelerate::Error& error) {
    say(error);
    group.barrier();
  }
}

void dies(const Group& group, int64_t who) {
  group.barrier();
  if (group.rank() == who) _exit(7);
  std::this_thread::sleep_for(300ms);
  group.all_reduce(at::ones({4}));
}

void ragged(const Group& group) { static_cast<void>(group.all_gather(at::ones({64, group.rank() == 1 ? 12 : 10}))); }

void shapes(const Group& group) { group.all_reduce(at::ones({group.rank() + 4})); }

void operations(const Group& group) {
  group.barrier();
  if (group.rank() == 0) group.barrier();
  if (group.rank() == 1) group.broadcast(at::ones({2}));
}

void messages(const Group& group) {
  if (group.rank() == 0) group.send(at::ones({4}), 1);
  if (group.rank() == 1) group.recv(at::ones({3}), 0);
}

const std::map<std::string, void (*)(const Group&)> kScenarios{
    {"connect", [](const Group&) {}},
    {"late", late},
    {"rank_1_dies", [](const Group& group) { dies(group, 1); }},
    {"rank_0_dies", [](const Group& group) { dies(group, 0); }},
    {"ragged", ragged},
    {"debug_shapes", shapes},
    {"debug_operations", operations},
    {"debug_messages", messages},
};

}  // namespace

int main(int, char** argv) {
  const std::string scenario = argv[1];
  try {
    const auto process = accelerate::env::read(accelerate::env::current_variables());
    const auto group = accelerate::comm::connect(process, {.timeout = 2s, .debug = scenario.rfind("debug", 0) == 0});
    kScenarios.at(scenario)(group);
  } catch (const accelerate::Error& error) {
    say(error);
    return 3;
  }
  return 0;
}

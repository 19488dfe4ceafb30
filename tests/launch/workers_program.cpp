// SPDX-License-Identifier: Apache-2.0
// workers_program CASE [arguments]: starts itself as ranks, for workers_test.cpp.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include "accelerate/base/error.hpp"
#include "accelerate/env/process_env.hpp"
#include "launch/workers.hpp"

namespace {

using accelerate::launch::LaunchOptions;
using accelerate::launch::run_workers;
using Main = std::function<void(const std::string&)>;

LaunchOptions gloo() {
  LaunchOptions options;
  options.settings.backend = "gloo";
  options.grace_time = std::chrono::milliseconds(200);
  return options;
}

accelerate::env::ProcessEnv here() { return accelerate::env::read_process_env(accelerate::env::current_variables()); }

void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void on_rank(int64_t rank, const std::function<void()>& what) {
  if (here().rank == rank) what();
}

// In rank order, independent of the machine's load.
void say_in_turn(const std::string& argument) {
  usleep(static_cast<useconds_t>(here().rank * 300'000));
  say(fmt::format("rank {} of {}: {}", here().rank, here().world_size, argument));
}

void twice() {
  run_workers(say_in_turn, 2, "first", gloo());
  say(here().world_size == 1 ? "between" : "passed over");
  run_workers(say_in_turn, 1, "second\n\xc3\xa4", gloo());
  say("end");
}

void fails(const Main& main) {
  try {
    run_workers(main, 2, "", gloo());
    say("no error");
  } catch (const accelerate::Error& error) {
    say(fmt::format("{}: {}", accelerate::base::error_kind_name(error.kind()), error.what()));
  }
}

void fails_with_fields() {
  try {
    run_workers(
        [](const std::string&) {
          const accelerate::RankContext place{.rank = 1, .world_size = 2, .host = "gpu-b"};
          on_rank(1, [&] {
            throw accelerate::Error(accelerate::ErrorKind::peer, place, "all_gather", "two\nlines", {3, 0});
          });
          pause();
        },
        2, "", gloo());
  } catch (const accelerate::Error& error) {
    say(fmt::format("{} of {} on {}: {}, missing {}\n{}", error.rank().value_or(-1), error.world_size().value_or(-1),
                    error.host(), error.operation(), fmt::join(error.missing_ranks(), " "), error.what()));
  }
}

void fails_by_error() {
  fails([](const std::string&) {
    on_rank(1, [] { accelerate::base::fail(accelerate::ErrorKind::data, {}, "read", "digit is 11"); });
    pause();
  });
}

void fails_by_exception() {
  fails([](const std::string&) {
    on_rank(0, [] { throw std::runtime_error("two\nlines"); });
    pause();
  });
}

void fails_once() {
  fails([](const std::string&) {
    if (here().restart_count == 0) throw std::runtime_error("the first time");
  });
}

void fails_otherwise() {
  fails([](const std::string&) {
    throw std::runtime_error(here().restart_count == 0 ? "the first time" : "the second time");
  });
}

void fails_then_exits() {
  fails([](const std::string&) {
    if (here().restart_count == 0) throw std::runtime_error("the first time");
    std::_Exit(3);
  });
}

void is_killed() {
  fails([](const std::string&) {
    on_rank(1, [] { raise(SIGKILL); });
    pause();
  });
}

void exits() {
  fails([](const std::string&) {
    on_rank(0, [] { std::_Exit(3); });
    pause();
  });
}

void exits_well() {
  fails([](const std::string&) { on_rank(1, [] { std::_Exit(0); }); });
}

void takes_another_way() {
  if (here().world_size == 1) fails([](const std::string&) {});
}

void nests() {
  fails([](const std::string&) { fails([](const std::string&) {}); });
}

void none() {
  try {
    run_workers(say_in_turn, 0, "", gloo());
  } catch (const accelerate::Error& error) {
    say(error.what());
  }
}

void after_threads() {
  std::thread sleeper([] { sleep(300); });
  sleeper.detach();
  run_workers(say_in_turn, 2, "x", gloo());
  fails([](const std::string&) { on_rank(1, [] { throw std::runtime_error("again"); }); });
  std::_Exit(0);
}

void sleeps() {
  run_workers(
      [](const std::string&) {
        say(fmt::format("pid {}", getpid()));
        sleep(300);
      },
      2, "", gloo());
}

void saves() {
  auto patient = gloo();
  patient.grace_time = std::chrono::seconds(20);
  run_workers(
      [](const std::string&) {
        static volatile std::sig_atomic_t signalled = 0;
        std::signal(SIGINT, [](int) { signalled = 1; });
        say(fmt::format("ready {}", here().rank));
        while (signalled == 0) usleep(10'000);
        usleep(500'000);
        say("saved");
      },
      1, "", patient);
}

void one_sleeps() {
  run_workers(
      [](const std::string&) {
        on_rank(1, [] {
          say("rank 1 sleeps");
          sleep(300);
        });
      },
      2, "", gloo());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string which = argc > 1 ? argv[1] : "";
  const std::map<std::string, void (*)()> cases{{"twice", twice},
                                                {"error", fails_by_error},
                                                {"fields", fails_with_fields},
                                                {"exception", fails_by_exception},
                                                {"once", fails_once},
                                                {"otherwise", fails_otherwise},
                                                {"then_exits", fails_then_exits},
                                                {"killed", is_killed},
                                                {"exits", exits},
                                                {"exits_well", exits_well},
                                                {"another_way", takes_another_way},
                                                {"nests", nests},
                                                {"none", none},
                                                {"after_threads", after_threads},
                                                {"sleeps", sleeps},
                                                {"saves", saves},
                                                {"one_sleeps", one_sleeps}};
  if (which == "arguments") {
    run_workers([&](const std::string&) { say(argv[2]); }, 1, "", gloo());
  } else {
    cases.at(which)();
  }
}

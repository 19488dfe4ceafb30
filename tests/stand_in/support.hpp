// SPDX-License-Identifier: Apache-2.0
// Shared code of the tests on the stand-in.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/stand_in/stand_in.hpp"
#include "tests/testing.hpp"

namespace stand_in {

inline const std::vector<std::string> kNoRaces{};

/// For test cases that need the stand-in: races, traces, limits, enough devices.
inline doctest::skip needs_stand_in() { return doctest::skip(on_gpu()); }

/// During its lifetime, collectives with asyncOp = false run on the caller's stream.
struct OnCallersStream {
  OnCallersStream() { set_on_callers_stream(true); }
  ~OnCallersStream() { set_on_callers_stream(false); }
  OnCallersStream(const OnCallersStream&) = delete;
  OnCallersStream& operator=(const OnCallersStream&) = delete;
};

/// Runs `body` three times: without delays, when only the race check is decisive; with slow side streams, where a
/// missing wait for a copy or a collective gives wrong numbers; and with a slow main stream, where a missing wait of a
/// side stream does. No race may occur in any run.
inline void at_every_pace(const std::function<void()>& body, int microseconds = 2000) {
  if (on_gpu()) return body();
  const auto run = [&](const std::string& pace, int delay, Slow slow) {
    INFO("pace: ", pace);
    detect_races();
    set_delay(delay, slow);
    body();
    set_delay(0);
    CHECK(detect_races() == kNoRaces);
  };
  run("no delay", 0, Slow::all);
  run("slow side streams", microseconds, Slow::side);
  run("slow main streams", microseconds, Slow::main);
}

}  // namespace stand_in

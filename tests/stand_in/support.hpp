// SPDX-License-Identifier: Apache-2.0
// What the tests on the stand-in share.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/stand_in/stand_in.hpp"
#include "tests/testing.hpp"

namespace stand_in {

inline const std::vector<std::string> kNoRaces{};

/// Of a test case that looks at what only the stand-in has: races, traces, limits, devices enough.
inline doctest::skip needs_stand_in() { return doctest::skip(on_gpu()); }

/// While it lives, what c10d calls with asyncOp = false runs on the caller's stream.
struct OnCallersStream {
  OnCallersStream() { set_on_callers_stream(true); }
  ~OnCallersStream() { set_on_callers_stream(false); }
  OnCallersStream(const OnCallersStream&) = delete;
  OnCallersStream& operator=(const OnCallersStream&) = delete;
};

/// Runs body three times: without delays, when the race check alone is certain; with slow side streams, which show as
/// wrong numbers that somebody did not wait for a copy or a collective; and with a slow main stream, which shows that a
/// side stream did not wait for it. Nothing may race in any of them.
inline void at_every_pace(const std::function<void()>& body, int microseconds = 2000) {
  if (on_gpu()) return body();
  const auto run = [&](const std::string& pace, int delay, Slow slow) {
    INFO("pace: ", pace);
    take_races();
    set_delay(delay, slow);
    body();
    set_delay(0);
    CHECK(take_races() == kNoRaces);
  };
  run("no delay", 0, Slow::all);
  run("slow side streams", microseconds, Slow::side);
  run("slow main streams", microseconds, Slow::main);
}

}  // namespace stand_in

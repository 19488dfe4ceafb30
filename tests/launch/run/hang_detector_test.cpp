// SPDX-License-Identifier: Apache-2.0
#include "launch/run/hang_detector.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using accelerate::launch::HangDetector;
using accelerate::launch::HangStatus;
using accelerate::launch::message_of;
using accelerate::launch::parse_hang_status;
using accelerate::launch::StalledRank;
using std::chrono::seconds;

namespace {

StalledRank seen(int64_t rank, uint64_t beats, int64_t waiting_in, int64_t sequence) {
  StalledRank one{.rank = rank};
  one.beat = {
      .beats = beats, .waiting_in = waiting_in, .sequence = sequence, .call = "call " + std::to_string(sequence)};
  return one;
}

const StalledRank kWaits = seen(0, 9, 41, 41);
const StalledRank kComputes = seen(2, 8, 0, 40);
const StalledRank kHasNotCome = seen(2, 0, 0, 0);

HangStatus stalled_time(std::vector<StalledRank> ranks) { return {.is_still = true, .ranks = std::move(ranks)}; }

}  // namespace

TEST_CASE("a hang status survives a round trip, with names of any characters") {
  auto hostile = kWaits;
  hostile.beat.call = "all_reduce, operation 41 of a\nb\n\n";
  const auto read = parse_hang_status(message_of(stalled_time({hostile, kComputes}))
                                          .substr(0, message_of(stalled_time({hostile, kComputes})).size() - 1));
  REQUIRE(read);
  REQUIRE(read->ranks.size() == 2);
  CHECK(read->is_still);
  CHECK(read->ranks[0].rank == 0);
  CHECK(read->ranks[0].beat.call == "all_reduce, operation 41 of a b  ");
  CHECK(read->ranks[1].beat == kComputes.beat);
  CHECK_FALSE(parse_hang_status("accelerate_launch moving\n")->is_still);
  for (const char* text : {"", "\n", "accelerate_launch still", "accelerate_launch still\n1 2 3\n",
                           "accelerate_launch still\nx 2 3 4 call\n", "accelerate_launch moving\n1 2 3 4 call\n"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_hang_status(text));
  }
}

TEST_CASE("ranks are stalled if those of all machines are, and the missing one is named with its number") {
  const HangDetector::Clock::time_point begin{};
  HangDetector detector(2, seconds(30));
  CHECK_FALSE(detector.deadline());
  detector.update(0, stalled_time({kWaits}), begin);
  CHECK_FALSE(detector.deadline());
  detector.update(1, stalled_time({kComputes}), begin + seconds(9));
  // Each part reports after half the limit without progress.
  CHECK(detector.deadline() == begin + seconds(24));
  CHECK_FALSE(detector.verdict(begin + seconds(23)));
  CHECK(detector.verdict(begin + seconds(24)) ==
        "no rank has moved for 30 s; worker 2 is missing, worker 0 waits in call 41");
  detector.update(1, {}, begin + seconds(23));  // progress
  CHECK_FALSE(detector.verdict(begin + seconds(99)));
  detector.update(1, stalled_time({seen(2, 9, 41, 41)}), begin + seconds(60));
  CHECK_FALSE(detector.verdict(begin + seconds(74)));
  CHECK(detector.verdict(begin + seconds(75)) == "no rank has moved for 30 s; all wait in call 41");
}

TEST_CASE("a machine with exited ranks is not waited for; ranks that never started are not stalled") {
  const HangDetector::Clock::time_point begin{};
  HangDetector detector(2, seconds(30));
  detector.update(0, stalled_time({kHasNotCome}), begin);
  detector.mark_finished(1, begin);
  CHECK_FALSE(detector.deadline());
  detector.update(0, stalled_time({kWaits, kHasNotCome}), begin);
  CHECK(detector.verdict(begin + seconds(30)) ==
        "no rank has moved for 30 s; worker 2 is missing, worker 0 waits in call 41");
  HangDetector patient(1, seconds(0));
  patient.update(0, stalled_time({kWaits}), begin);
  CHECK_FALSE(patient.deadline());
}

TEST_CASE("a wait may end with the other machine; progress counts after it has exited") {
  const HangDetector::Clock::time_point begin{};
  HangDetector detector(2, seconds(30));
  detector.update(0, stalled_time({kWaits}), begin);
  detector.mark_finished(1, begin + seconds(50));
  CHECK_FALSE(detector.verdict(begin + seconds(79)));
  CHECK(detector.verdict(begin + seconds(80)));
  detector.update(0, {}, begin + seconds(53));
  CHECK_FALSE(detector.deadline());
}

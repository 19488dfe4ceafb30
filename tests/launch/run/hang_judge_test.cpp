// SPDX-License-Identifier: Apache-2.0
#include "launch/run/hang_judge.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using accelerate::launch::HangJudge;
using accelerate::launch::message_of;
using accelerate::launch::read_stillness;
using accelerate::launch::Stillness;
using accelerate::launch::StillRank;
using std::chrono::seconds;

namespace {

StillRank seen(int64_t rank, uint64_t beats, int64_t waits_in, int64_t sequence) {
  StillRank one{.rank = rank};
  one.beat = {.beats = beats, .waits_in = waits_in, .sequence = sequence, .call = "call " + std::to_string(sequence)};
  return one;
}

const StillRank kWaits = seen(0, 9, 41, 41);
const StillRank kComputes = seen(2, 8, 0, 40);
const StillRank kHasNotCome = seen(2, 0, 0, 0);

Stillness still(std::vector<StillRank> ranks) { return {.is_still = true, .ranks = std::move(ranks)}; }

}  // namespace

TEST_CASE("what a machine says of ranks that stand still is read as it was written, names of any letters too") {
  auto hostile = kWaits;
  hostile.beat.call = "all_reduce, operation 41 of a\nb\n\n";
  const auto read = read_stillness(
      message_of(still({hostile, kComputes})).substr(0, message_of(still({hostile, kComputes})).size() - 1));
  REQUIRE(read);
  REQUIRE(read->ranks.size() == 2);
  CHECK(read->is_still);
  CHECK(read->ranks[0].rank == 0);
  CHECK(read->ranks[0].beat.call == "all_reduce, operation 41 of a b  ");
  CHECK(read->ranks[1].beat == kComputes.beat);
  CHECK_FALSE(read_stillness("accelerate_launch moving\n")->is_still);
  for (const char* text : {"", "\n", "accelerate_launch still", "accelerate_launch still\n1 2 3\n",
                           "accelerate_launch still\nx 2 3 4 call\n", "accelerate_launch moving\n1 2 3 4 call\n"}) {
    CAPTURE(text);
    CHECK_FALSE(read_stillness(text));
  }
}

TEST_CASE(
    "ranks of several machines hang when those of all stand still, and the missing one is named with its number") {
  const HangJudge::Clock::time_point begin{};
  HangJudge judge(2, seconds(30));
  CHECK_FALSE(judge.deadline());
  judge.hear(0, still({kWaits}), begin);
  CHECK_FALSE(judge.deadline());
  judge.hear(1, still({kComputes}), begin + seconds(9));
  // Each part reports after half the limit without progress.
  CHECK(judge.deadline() == begin + seconds(24));
  CHECK_FALSE(judge.verdict(begin + seconds(23)));
  CHECK(judge.verdict(begin + seconds(24)) ==
        "no rank has moved for 30 s; worker 2 is missing, worker 0 waits in call 41");
  judge.hear(1, {}, begin + seconds(23));  // progress
  CHECK_FALSE(judge.verdict(begin + seconds(99)));
  judge.hear(1, still({seen(2, 9, 41, 41)}), begin + seconds(60));
  CHECK_FALSE(judge.verdict(begin + seconds(74)));
  CHECK(judge.verdict(begin + seconds(75)) == "no rank has moved for 30 s; all wait in call 41");
}

TEST_CASE("a machine whose ranks have ended waits for nobody; ranks that never began anything do not hang") {
  const HangJudge::Clock::time_point begin{};
  HangJudge judge(2, seconds(30));
  judge.hear(0, still({kHasNotCome}), begin);
  judge.take_leave_of(1, begin);
  CHECK_FALSE(judge.deadline());
  judge.hear(0, still({kWaits, kHasNotCome}), begin);
  CHECK(judge.verdict(begin + seconds(30)) ==
        "no rank has moved for 30 s; worker 2 is missing, worker 0 waits in call 41");
  HangJudge patient(1, seconds(0));
  patient.hear(0, still({kWaits}), begin);
  CHECK_FALSE(patient.deadline());
}

TEST_CASE("what one machine has waited for may end with another: that it moves is heard of after the other has left") {
  const HangJudge::Clock::time_point begin{};
  HangJudge judge(2, seconds(30));
  judge.hear(0, still({kWaits}), begin);
  judge.take_leave_of(1, begin + seconds(50));
  CHECK_FALSE(judge.verdict(begin + seconds(79)));
  CHECK(judge.verdict(begin + seconds(80)));
  judge.hear(0, {}, begin + seconds(53));
  CHECK_FALSE(judge.deadline());
}

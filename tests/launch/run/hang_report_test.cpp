// SPDX-License-Identifier: Apache-2.0
#include "launch/run/hang_report.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using accelerate::base::Heartbeat;
using accelerate::launch::hang_cause;
using accelerate::launch::hang_lines;
using accelerate::launch::idle_ranks;
using accelerate::launch::lone_hang_cause;
using accelerate::launch::missing_ranks;
using accelerate::launch::StalledRank;
using std::chrono::seconds;

namespace {

StalledRank waiting(int64_t rank, int64_t sequence) {
  return {.rank = rank,
          .pid = 100,
          .beat = {.beats = 9,
                   .step = 7,
                   .waiting_in = sequence,
                   .sequence = sequence,
                   .call = "call " + std::to_string(sequence)},
          .does = "waits"};
}

StalledRank working(int64_t rank, int64_t sequence) {
  auto one = waiting(rank, sequence);
  one.beat.waiting_in = 0;
  one.does = "computes";
  return one;
}

const StalledRank not_come{.rank = 3, .pid = 100, .beat = {}, .does = "is stopped"};

}  // namespace

TEST_CASE("a rank outside any operation is missing, otherwise the rank that is farthest behind") {
  CHECK(missing_ranks({waiting(0, 41), working(1, 40), waiting(2, 41)}) == std::vector<int64_t>{1});
  CHECK(missing_ranks({waiting(0, 41), waiting(1, 39), waiting(2, 40)}) == std::vector<int64_t>{1, 2});
  CHECK(missing_ranks({waiting(0, 41), not_come}) == std::vector<int64_t>{3});
  CHECK(missing_ranks({working(0, 3), working(1, 3)}).empty());
  CHECK(missing_ranks({waiting(0, 3), waiting(1, 3)}).empty());
  CHECK(missing_ranks({}).empty());
}

TEST_CASE("the ranks of one machine outside any operation are idle") {
  CHECK(idle_ranks({waiting(0, 3), working(1, 3), not_come}) == std::vector<int64_t>{1, 3});
  CHECK(idle_ranks({waiting(0, 3)}).empty());
}

TEST_CASE("the cause names the missing rank and the operation of the others") {
  CHECK(hang_cause({waiting(0, 41), working(1, 40), waiting(2, 41)}, seconds(30)) ==
        "no rank has moved for 30 s; worker 1 is missing, workers 0 and 2 wait in call 41");
  CHECK(hang_cause({waiting(0, 2), working(1, 1), not_come}, seconds(30)) ==
        "no rank has moved for 30 s; workers 1 and 3 are missing, worker 0 waits in call 2");
  CHECK(hang_cause({working(0, 1)}, std::chrono::milliseconds(500)) == "no rank has moved for 0.5 s");
  CHECK(hang_cause({waiting(0, 3), waiting(1, 3)}, seconds(9)) == "no rank has moved for 9 s; all wait in call 3");
  std::vector<StalledRank> many;
  for (int64_t rank = 0; rank < 20; ++rank) many.push_back(rank == 0 ? waiting(0, 5) : working(rank, 4));
  CHECK(hang_cause(many, seconds(9)) ==
        "no rank has moved for 9 s; workers 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 ... and 3 more are "
        "missing, worker 0 waits in call 5");
}

TEST_CASE("a rank that is observed alone is not reported as all ranks") {
  const std::string rest = "; the job's other ranks are not seen from here, where each was started by itself";
  CHECK(lone_hang_cause(waiting(2, 41), seconds(30)) == "worker 2 has not moved for 30 s and waits in call 41" + rest);
  CHECK(lone_hang_cause(working(2, 41), seconds(30)) == "worker 2 has not moved for 30 s" + rest);
}

TEST_CASE("each rank's line contains its activity and its progress") {
  auto message = waiting(1, 5);
  message.beat.waiting_in = -1;
  CHECK(hang_lines({waiting(0, 41), message, working(2, 40), not_come}) ==
        "accelerate_launch: worker 0 (pid 100) waits; it made 7 steps and waits in call 41\n"
        "accelerate_launch: worker 1 (pid 100) waits; it made 7 steps and waits for a message\n"
        "accelerate_launch: worker 2 (pid 100) computes; it made 7 steps and is after call 40\n"
        "accelerate_launch: worker 3 (pid 100) is stopped; it has not reached its first operation\n");
}

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/profile/schedule.hpp"

#include "tests/testing.hpp"

using namespace accelerate::profile;

namespace {

constexpr auto no = ProfileAction::none, warm = ProfileAction::warmup, record = ProfileAction::record,
               save = ProfileAction::record_and_save;

std::vector<ProfileAction> actions(const ProfileSchedule& schedule, int64_t steps) {
  std::vector<ProfileAction> all;
  for (int64_t step = 0; step < steps; ++step) all.push_back(action_at(step, schedule));
  return all;
}

}  // namespace

TEST_CASE("cycles of wait, warm-up and active equal torch.profiler.schedule's") {
  CHECK((actions({.skip_first = 1, .wait = 1, .warmup = 2, .active = 3}, 14) ==
         std::vector{no, no, warm, warm, record, record, save, no, warm, warm, record, record, save, no}));
  CHECK((actions({.wait = 1, .warmup = 1, .active = 1, .repeat = 2}, 8) ==
         std::vector{no, warm, save, no, warm, save, no, no}));
  CHECK((actions({}, 3) == std::vector{save, save, save}));
}

// SPDX-License-Identifier: Apache-2.0
// Schedule of the steps that a profiler records.
#pragma once

#include <cstdint>

namespace accelerate::profile {

/// Numbers of steps: skip_first once, then cycles of wait, warmup and active, as in torch.profiler.schedule.
struct ProfileSchedule {
  int64_t skip_first = 0;
  int64_t wait = 0;
  int64_t warmup = 0;  ///< recorded but discarded, to exclude the profiler's own start-up
  int64_t active = 1;  ///< recorded; at least 1
  int64_t repeat = 0;  ///< number of cycles; 0 for unlimited
};

enum class ProfileAction { none, warmup, record, record_and_save };

/// Returns the action in a step, counted from 0. Pure function.
[[nodiscard]] constexpr ProfileAction action_at(int64_t step, const ProfileSchedule& schedule) {
  step -= schedule.skip_first;
  const int64_t cycle = schedule.wait + schedule.warmup + schedule.active;
  if (step < 0 || (schedule.repeat > 0 && step / cycle >= schedule.repeat)) return ProfileAction::none;
  const int64_t place = step % cycle;
  if (place < schedule.wait) return ProfileAction::none;
  if (place < schedule.wait + schedule.warmup) return ProfileAction::warmup;
  return place + 1 < cycle ? ProfileAction::record : ProfileAction::record_and_save;
}

}  // namespace accelerate::profile

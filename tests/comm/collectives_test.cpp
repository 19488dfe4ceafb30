// SPDX-License-Identifier: Apache-2.0
// On real processes; the backend is the launcher's choice.
#include "tests/comm/collectives_support.hpp"
#include "tests/world.hpp"

namespace {

/// On the group of the job, and where that has one rank, on a real group of one too.
void on_every_rank(const std::function<void(const Group&)>& check) {
  check(testing::world());
  if (testing::world().size() > 1) return;
  static const Group forced = accelerate::comm::connect(testing::process_env(), {.force_group = true});
  check(forced);
}

}  // namespace

#include "tests/comm/collectives_cases.hpp"

TEST_CASE("the group is the job's, on the backend that was asked for") {
  const auto process = testing::process_env();
  const auto& group = testing::world();
  CHECK(group.rank() == process.rank);
  CHECK(group.size() == process.world_size);
  CHECK(group.place().host == accelerate::base::host_name());
  const auto variables = accelerate::env::current_variables();
  const auto asked = variables.find("ACCELERATE_BACKEND");
  if (asked != variables.end()) CHECK(group.backend() == (group.size() == 1 ? "single" : asked->second));
}

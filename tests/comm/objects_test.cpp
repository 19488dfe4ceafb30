// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/objects.hpp"

#include "tests/testing.hpp"

using namespace accelerate::comm;

TEST_CASE("json objects are gathered and broadcast") {
  run_threads(3, [](const Group& group) {
    const nlohmann::json mine{{"rank", group.rank()}, {"names", {"a", "b"}}};
    const auto all = all_gather_object(group, mine);
    CHECK(all.size() == 3);
    for (int64_t r = 0; r < 3; ++r) CHECK(all[static_cast<size_t>(r)]["rank"] == r);
    CHECK(gather_object(group, mine, 1).size() == (group.rank() == 1 ? 3 : 0));
    CHECK(broadcast_object(group, mine, 2)["rank"] == 2);
  });
}

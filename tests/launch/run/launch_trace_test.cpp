// SPDX-License-Identifier: Apache-2.0
#include "launch/run/launch_trace.hpp"

#include <doctest/doctest.h>

TEST_CASE("the launch trace is valid shell input and hides the ids of the job") {
  const accelerate::launch::WorkerPlan worker{.rank = 1,
                                              .command = {"./my train", "--epochs", "3"},
                                              .environment = {{"HOME", "/root"},
                                                              {"RANK", "1"},
                                                              {"NOTE", "it's $(here)"},
                                                              {"ACCELERATE_JOB_ID", "0123"},
                                                              {"PMIX_NAMESPACE", "accelerate-0123"}}};
  CHECK(launch_trace(worker, 4121, {{"HOME", "/root"}, {"RANK", "0"}}) ==
        "accelerate_launch: rank 1 is process 4121: ACCELERATE_JOB_ID=... NOTE='it'\\''s $(here)' PMIX_NAMESPACE=... "
        "RANK=1 './my train' --epochs 3\n");
}

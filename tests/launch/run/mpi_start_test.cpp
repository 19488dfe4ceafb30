// SPDX-License-Identifier: Apache-2.0
#include "launch/run/mpi_start.hpp"

#include <doctest/doctest.h>

using accelerate::launch::AtMpiStart;
using accelerate::launch::awaited;
using accelerate::launch::names;

namespace {

const AtMpiStart waits{.rank = 0, .came = true, .finalized = false};
const AtMpiStart ended_well{.rank = 0, .running = false, .came = true};
const AtMpiStart away{.rank = 1};
const AtMpiStart ended_before{.rank = 3, .running = false};

}  // namespace

TEST_CASE("who has not come to MPI's start is awaited while somebody waits there") {
  CHECK(awaited({away, ended_before}).empty());
  CHECK(awaited({waits}).empty());
  CHECK(awaited({ended_well, ended_before}).empty());
  CHECK(names(awaited({waits, away})) == "worker 1");
  CHECK(names(awaited({waits, away, ended_before})) == "workers 1, 3");
}

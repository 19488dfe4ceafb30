// SPDX-License-Identifier: Apache-2.0
#include "launch/run/mpi_start.hpp"

#include <doctest/doctest.h>

using accelerate::launch::awaited_in_mpi_init;
using accelerate::launch::MpiInitStatus;
using accelerate::launch::names;

namespace {

const MpiInitStatus waits{.rank = 0, .has_joined = true, .finalized = false};
const MpiInitStatus ended_well{.rank = 0, .running = false, .has_joined = true};
const MpiInitStatus away{.rank = 1};
const MpiInitStatus ended_before{.rank = 3, .running = false};

}  // namespace

TEST_CASE("the launcher waits for ranks that are missing in MPI's start while another rank waits there") {
  CHECK(awaited_in_mpi_init({away, ended_before}).empty());
  CHECK(awaited_in_mpi_init({waits}).empty());
  CHECK(awaited_in_mpi_init({ended_well, ended_before}).empty());
  CHECK(names(awaited_in_mpi_init({waits, away})) == "worker 1");
  CHECK(names(awaited_in_mpi_init({waits, away, ended_before})) == "workers 1, 3");
}

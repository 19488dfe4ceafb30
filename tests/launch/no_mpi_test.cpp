// SPDX-License-Identifier: Apache-2.0
// Tests a build without MPI or PMIx's headers.
#include <doctest/doctest.h>

#include "tests/launch/run.hpp"

using testing::launch;

TEST_CASE("without a PMIx server a requested mpi is an error, and the default is gloo with a log line") {
  // If mpirun is installed, it starts the ranks.
  const auto requested =
      launch({"--backend", "mpi", "--num_processes", "2", "/bin/true"}, {{"PATH", "/no mpirun here"}});
  CHECK(requested.code == 1);
  CHECK(requested.err.starts_with(
      "accelerate_launch: backend mpi is requested, but this accelerate_launch was built without "));
  CHECK(requested.err.ends_with("; backend gloo works without\n"));
  const auto not_requested = launch({"--cpu", "--num_processes", "2", "true"});
  CHECK(not_requested.code == 0);
  CHECK(not_requested.err.ends_with("; the ranks use gloo, which is slower than mpi on one machine\n"));
}

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/mpi/pmix_client.hpp"

#include <dlfcn.h>
#include <doctest/doctest.h>

#include "tests/comm/mpi/child_status.hpp"

namespace {

/// Returns true if the function returns true in a child process, in which it may load a PMIx.
template <typename Function>
bool holds_in_child(const Function& function) {
  return testing::status_of_child([&] { return function() ? 0 : 1; }) == 0;
}

/// The counters of a loaded fake_pmix_client.c.
struct FakePmix {
  explicit FakePmix(int initial_uses) { uses = initial_uses; }
  void* library = dlopen(FAKE_PMIX_CLIENT, RTLD_NOW);
  int& uses = *static_cast<int*>(dlsym(library, "fake_uses"));
  int& fences = *static_cast<int*>(dlsym(library, "fake_fences"));
};

}  // namespace

TEST_CASE("after MPI_Init a fence of PMIx waits for all ranks and collects data") {
  CHECK(holds_in_child([] {
    FakePmix pmix(1);
    accelerate::comm::wait_for_all_ranks_of_job();
    return pmix.fences == 1;
  }));
}

TEST_CASE("a PMIx that is not initialised is not called") {
  CHECK(holds_in_child([] {
    FakePmix pmix(0);
    accelerate::comm::wait_for_all_ranks_of_job();
    accelerate::comm::exit_without_finalize();
    return pmix.fences == 0 && pmix.uses == 0;
  }));
}

TEST_CASE("an exit without MPI_Finalize ends all uses of PMIx") {
  CHECK(holds_in_child([] {
    FakePmix pmix(3);
    accelerate::comm::exit_without_finalize();
    return pmix.uses == 0;
  }));
}

TEST_CASE("without PMIx both functions return") {
  CHECK(holds_in_child([] {
    accelerate::comm::wait_for_all_ranks_of_job();
    accelerate::comm::exit_without_finalize();
    return true;
  }));
}

// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "accelerate/device/cpu_threads.hpp"
#include "tests/world.hpp"

namespace {

std::optional<accelerate::comm::Group>& the_world() {
  static std::optional<accelerate::comm::Group> group;
  return group;
}

/// As an Accelerator would: these tests make groups without one, and more threads than cores are slow.
void share_cores() {
  namespace device = accelerate::device;
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  device::set_threads(device::threads_per_rank(device::physical_cores(), testing::process_env().local_world_size, {}));
}

}  // namespace

namespace testing {

accelerate::env::ProcessEnv process_env() { return accelerate::env::read(accelerate::env::current_variables()); }

const accelerate::comm::Group& world() {
  if (!the_world()) the_world() = accelerate::comm::connect(process_env(), {.timeout = std::chrono::seconds(60)});
  return *the_world();
}

}  // namespace testing

int main(int argc, char** argv) {
  share_cores();
  const int code = doctest::Context(argc, argv).run();
  the_world().reset();  // before LibTorch's own globals go
  return code;
}

// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <optional>

#include "accelerate/device/cpu_threads.hpp"
#include "accelerate/device/device_selection.hpp"
#include "accelerate/env/settings.hpp"
#include "tests/world.hpp"

namespace {

std::optional<accelerate::comm::Group>& the_world() {
  static std::optional<accelerate::comm::Group> group;
  return group;
}

/// This rank's GPU, if there is one and ACCELERATE_USE_CPU is not set: the device of an Accelerator without options.
std::optional<at::Device> gpu() {
  namespace env = accelerate::env;
  const auto variables = env::current_variables();
  const auto settings = env::resolve_settings({}, variables, env::read_config(variables));
  const auto chosen = accelerate::device::select_device(env::read_process_env(variables), settings,
                                                        accelerate::device::accelerator(), {});
  accelerate::device::set_current_device(chosen);
  return chosen.is_cpu() ? std::nullopt : std::optional(chosen);
}

/// Limits the threads as an Accelerator does: these tests create groups without one, and more threads than cores are
/// slow.
void share_cores() {
  namespace device = accelerate::device;
  if (std::getenv("OMP_NUM_THREADS") != nullptr) return;
  device::set_threads(device::threads_per_rank(device::physical_cores(), testing::process_env().local_world_size, {}));
}

}  // namespace

namespace testing {

accelerate::env::ProcessEnv process_env() {
  return accelerate::env::read_process_env(accelerate::env::current_variables());
}

accelerate::comm::ConnectOptions connect_options() {
  return {.timeout = std::chrono::seconds(60),
          .device = gpu(),
          .force_group = std::getenv("ACCELERATE_TEST_NCCL") != nullptr};
}

const accelerate::comm::Group& world() {
  if (!the_world()) the_world() = accelerate::comm::connect(process_env(), connect_options());
  return *the_world();
}

void with_cpu_ranks(const std::function<void(const accelerate::comm::Group&)>& check) {
  if (!world().device()) return check(world());
  MESSAGE("left out: the ranks have GPUs");
}

}  // namespace testing

int main(int argc, char** argv) {
  share_cores();
  const int code = doctest::Context(argc, argv).run();
  the_world().reset();  // before LibTorch's globals are destroyed
  return code;
}

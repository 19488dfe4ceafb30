// SPDX-License-Identifier: Apache-2.0
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>
#include <optional>

#include "tests/world.hpp"

namespace {

std::optional<accelerate::comm::Group>& the_world() {
  static std::optional<accelerate::comm::Group> group;
  return group;
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
  const int code = doctest::Context(argc, argv).run();
  the_world().reset();  // before LibTorch's own globals go
  return code;
}

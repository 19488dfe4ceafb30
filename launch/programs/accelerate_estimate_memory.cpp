// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/estimate_memory.hpp"

int main(int argc, char** argv) {
  return accelerate::launch::run_command(accelerate::launch::estimate_memory, argc, argv);
}

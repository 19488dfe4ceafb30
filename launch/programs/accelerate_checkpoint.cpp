// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/checkpoint.hpp"

int main(int argc, char** argv) {
  return accelerate::launch::run_command(accelerate::launch::checkpoint, argc, argv, 2);
}

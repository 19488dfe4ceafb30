// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/merge_weights.hpp"

int main(int argc, char** argv) {
  return accelerate::launch::run_command(accelerate::launch::merge_weights, argc, argv);
}

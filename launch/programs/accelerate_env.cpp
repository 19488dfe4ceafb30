// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/environment.hpp"

int main(int argc, char** argv) { return accelerate::launch::run_command(accelerate::launch::environment, argc, argv); }

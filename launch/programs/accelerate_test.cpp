// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/test_job.hpp"

int main(int argc, char** argv) { return accelerate::launch::run_command(accelerate::launch::test_job, argc, argv); }

// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/report.hpp"

int main(int argc, char** argv) { return accelerate::launch::run_command(accelerate::launch::make_report, argc, argv); }

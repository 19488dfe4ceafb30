// SPDX-License-Identifier: Apache-2.0
// accelerate_launch [options] program [arguments]
#include <fmt/format.h>

#include <exception>
#include <string>
#include <vector>

#include "accelerate/env/process_env.hpp"
#include "launch/machine.hpp"
#include "launch/mpi_server.hpp"
#include "launch/options.hpp"
#include "launch/plan.hpp"
#include "launch/port.hpp"
#include "launch/supervise.hpp"

namespace launch = accelerate::launch;

namespace {

/// MPI's wire-up where it is wanted and can be had. It is the default of CPU ranks, so its absence is said and gloo is
/// used; asked for by name, its absence is an error.
bool decide_mpi(const launch::LaunchOptions& options, const launch::Machine& machine) {
  if (!launch::wants_mpi(options, machine)) return false;
  const auto why_not = launch::why_no_mpi_server();
  if (!why_not) return true;
  if (options.backend) {
    throw launch::LaunchError(
        1, fmt::format("accelerate_launch: --backend mpi: {}; --backend gloo works without", *why_not));
  }
  fmt::print(stderr, "accelerate_launch: {}; the ranks use gloo, which is slower than mpi on one machine\n", *why_not);
  return false;
}

int run(const std::vector<std::string>& arguments) {
  const auto parsed = launch::parse(arguments);
  if (parsed.print) {
    fmt::print("{}", *parsed.print);
    return 0;
  }
  const auto& options = parsed.options;
  const auto variables = accelerate::env::current_variables();
  const auto machine = launch::this_machine(variables);
  const launch::ReservedPort port(options.main_process_port);
  const auto plan =
      launch::plan(options, machine, variables, {.port = port.number(), .serve_mpi = decide_mpi(options, machine)});
  return launch::supervise(plan);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const launch::LaunchError& error) {
    fmt::print(stderr, "{}\n", error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    fmt::print(stderr, "accelerate_launch: {}\n", error.what());
    return 1;
  }
}

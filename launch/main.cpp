// SPDX-License-Identifier: Apache-2.0
// accelerate_launch [options] program [arguments]
#include <fmt/format.h>
#include <unistd.h>

#include <exception>

#include "launch/machine.hpp"
#include "launch/options.hpp"
#include "launch/plan.hpp"
#include "launch/port.hpp"
#include "launch/supervise.hpp"

namespace launch = accelerate::launch;

namespace {

accelerate::env::Variables own_environment() {
  accelerate::env::Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

/// MPI's own launcher starts the ranks and gives them their place.
void through_mpirun(launch::LaunchPlan& plan) {
  std::vector<std::string> command{"mpirun", "--allow-run-as-root", "--oversubscribe", "-np",
                                   std::to_string(plan.workers.size())};
  auto& worker = plan.workers.front();
  command.insert(command.end(), worker.command.begin(), worker.command.end());
  worker.command = command;
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) worker.environment.erase(name);
  worker.environment["OMPI_MCA_pml"] = "ob1";
  worker.environment["OMPI_MCA_btl"] = "vader,self";
  plan.workers.resize(1);
}

int run(const std::vector<std::string>& arguments) {
  const auto parsed = launch::parse(arguments);
  if (parsed.print) {
    fmt::print("{}", *parsed.print);
    return 0;
  }
  const auto variables = own_environment();
  const auto machine = launch::this_machine(variables);
  const launch::ReservedPort port(parsed.options.main_process_port);
  auto plan = launch::plan(parsed.options, machine, variables, port.number());
  if (parsed.options.backend == "mpi") through_mpirun(plan);
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

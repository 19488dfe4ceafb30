// SPDX-License-Identifier: Apache-2.0
#include "launch/runners/local.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "accelerate/base/random_id.hpp"
#include "launch/plan/machine.hpp"
#include "launch/plan/machine_placement.hpp"
#include "launch/plan/output_options.hpp"
#include "launch/plan/shell.hpp"
#include "launch/pmix/server.hpp"
#include "launch/run/port.hpp"
#include "launch/run/supervise.hpp"
#include "launch/runners/one_machine.hpp"

namespace accelerate::launch {
namespace {

/// Requested options and available resources.
struct Here {
  LaunchOptions options{};
  Machine machine{};
};

Here detect_machine(const RunnerContext& call) {
  Here here{.options = with_slurm_placement(call.options, call.variables)};
  if (here.options.num_processes != call.options.num_processes) {
    call.note(slurm_choice_text(tasks_of_job(call.variables)));
  }
  here.machine = machine_of_ranks(here.options, call.variables);
  check_gpus(here.options, here.machine);
  const auto place = place_of(here.options, here.machine);
  check_local_ranks(here.options, *std::max_element(place.ranks_of_machine.begin(), place.ranks_of_machine.end()));
  call.note(chosen_ranks_text(here.options, here.machine));
  call.note(unused_address_text(here.options));
  return here;
}

/// Whether MPI's wire-up is requested and available. For CPU ranks it is the default: if it is missing, a message is
/// logged and gloo is used. If MPI was requested by name, its absence is an error.
bool decide_mpi(const RunnerContext& call, const Here& here) {
  if (!wants_mpi(here.options, here.machine)) return false;
  const auto unavailable_reason = mpi_server_unavailable_reason();
  if (!unavailable_reason) return true;
  if (named_backend(here.options)) {
    fail(ErrorKind::environment,
         "backend mpi is requested, but {}, and mpirun is not in PATH; backend gloo works without",
         *unavailable_reason);
  }
  call.note(fmt::format("{}; the ranks use gloo, which is slower than mpi on one machine", *unavailable_reason));
  return false;
}

}  // namespace

std::string script_of_local(const RunnerContext& call) {
  const auto here = detect_machine(call);
  (void)supervise_options(here.options);  // validates the options
  check_backend(here.options, value_of(here.options, &LaunchOptions::num_machines));
  const auto port = value_of(here.options, &LaunchOptions::main_process_port);
  LaunchContext wiring{.port = port == 0 ? ReservedPort(0).number() : port, .serve_mpi = decide_mpi(call, here)};
  if (value_of(here.options, &LaunchOptions::num_machines) > 1) wiring.address = *here.options.main_process_ip;
  return as_script(plan(here.options, here.machine, call.variables, wiring), call.variables, current_folder());
}

int run_local(const RunnerContext& call) {
  const auto here = detect_machine(call);
  const auto& [options, machine] = here;
  SuperviseOptions supervised = supervise_options(options);
  call.note(oversubscription_warning(options, machine));
  if (value_of(options, &LaunchOptions::num_machines) > 1) {
    return run_one_machine(options, machine, call.variables, call.timeout, supervised);
  }
  const bool serve_mpi = decide_mpi(call, here);
  std::optional<ReservedPort> port;
  // If another launcher started this one, only that one restarts.
  const auto termination_signal = import_start(call.variables);
  const auto plan_of = [&, &options = options, &machine = machine](int64_t restart) {
    port.reset();
    port.emplace(restart == 0 ? options.main_process_port : options.main_process_port.value_or(0));
    if (port->moved()) call.note(port_moved(port->number()));
    LaunchContext wiring{
        .port = port->number(), .serve_mpi = serve_mpi, .job_id = base::random_id(), .restart_count = restart};
    if (termination_signal) {
      wiring.restart_count += termination_signal->restart_count;
      wiring.max_restarts = termination_signal->max_restarts;
    }
    return plan(options, machine, call.variables, wiring);
  };
  // Ranks in MPI_Init time out with their own message; the launcher follows two seconds later.
  supervised.mpi_start = call.timeout + std::chrono::seconds(2);
  supervised.restarts = {.max_restarts = value_of(options, &LaunchOptions::max_restarts),
                         .on_request = !termination_signal};
  return supervise(plan_of, supervised);
}

}  // namespace accelerate::launch

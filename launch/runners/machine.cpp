// SPDX-License-Identifier: Apache-2.0
#include "launch/runners/machine.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/env/parse.hpp"
#include "launch/meet/bond.hpp"
#include "launch/meet/meeting.hpp"
#include "launch/plan/job_place.hpp"
#include "launch/run/port.hpp"

namespace accelerate::launch {
namespace {

void check_backend(const LaunchOptions& options, int64_t machines) {
  if (options.settings.backend != "mpi") return;
  fail(ErrorKind::usage,
       "--backend mpi on {} machines is started by mpirun (--mpirun_hostfile FILE) or by srun; gloo works without",
       machines);
}

void check_restarts(const LaunchOptions& options, int64_t machines) {
  if (options.max_restarts.value_or(0) == 0) return;
  fail(ErrorKind::usage,
       "--max_restarts {} on {} machines, each of which has a launcher of its own; over ssh (--hosts), mpirun and srun "
       "all "
       "of them start again",
       *options.max_restarts, machines);
}

Hello hello_of(const JobPlace& place, const env::Variables& variables) {
  return {.version = ACCELERATE_VERSION,
          .job_id = env::find(variables, "ACCELERATE_JOB_ID").value_or(""),
          .host = base::host_name(),
          .machine = place.machine_rank,
          .machines = place.machines(),
          .processes = place.world_size(),
          .ranks = fmt::format("{}", fmt::join(place.ranks_of_machine, ","))};
}

}  // namespace

int run_one_machine(const LaunchOptions& options, const Machine& machine, const env::Variables& variables,
                    std::chrono::milliseconds timeout, const SuperviseOptions& supervise_options) {
  const JobPlace place = place_of(options, machine);
  check_backend(options, place.machines());
  check_restarts(options, place.machines());
  const Hello own = hello_of(place, variables);
  Gathered gathered = meet({.address = *options.main_process_ip,
                            .port = options.main_process_port.value_or(default_port),
                            .own = own,
                            .timeout = timeout});
  const Wiring wiring{
      .address = *options.main_process_ip,
      .port = gathered.welcome.port,
      .job_id = gathered.welcome.job_id,
      .restart_count = env::parse_integer(env::find(variables, "ACCELERATE_RESTART_COUNT").value_or("")).value_or(0)};
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) fail(ErrorKind::io, "pipe failed: {}", std::strerror(errno));
  const base::FileDescriptor failures(ends[0]);
  const base::FileDescriptor announce_to(ends[1]);
  SuperviseOptions with_failures = supervise_options;
  with_failures.failures = announce_to.get();
  return run_together(std::move(gathered), own, supervise_options.resume_code, failures.get(),
                      [&] { return supervise(plan(options, machine, variables, wiring), with_failures); });
}

}  // namespace accelerate::launch

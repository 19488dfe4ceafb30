// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/resolve.hpp"

#include <doctest/doctest.h>

#include <chrono>

#include "launch/plan/plan.hpp"

using accelerate::env::Config;
using accelerate::env::Variables;
using accelerate::launch::LaunchOptions;
using accelerate::launch::Machine;
using accelerate::launch::number_of_processes;
using accelerate::launch::on_cpu;
using accelerate::launch::resolve_options;
using accelerate::launch::wants_mpi;
using Lines = std::vector<std::string>;

namespace {

const Machine two_gpus{.gpus = 2, .usable_cpus = 16};
const Config no_file{};

Config file(const std::string& key, const std::string& value) { return {.path = "f", .values = {{key, value}}}; }

LaunchOptions resolved(const LaunchOptions& options, const Variables& variables, const Config& config = no_file) {
  return resolve_options(options, variables, config).options;
}

Lines conflicts(const LaunchOptions& options, const Variables& variables, const Config& config = no_file) {
  return resolve_options(options, variables, config).conflicts;
}

}  // namespace

TEST_CASE("options do not change without other sources") {
  const LaunchOptions options{.settings = {.backend = "gloo"}, .num_processes = 2, .command = {"./train"}};
  CHECK(resolved(options, {}) == options);
  CHECK(resolved(options, {{"ACCELERATE_USE_CPU", "0"}}) == options);
  CHECK(conflicts(options, {}).empty());
}

TEST_CASE("cpu and backend have equal effects as option, variable and config key") {
  for (const Variables& variables : {Variables{{"ACCELERATE_USE_CPU", "yes"}}, {{"ACCELERATE_TORCH_DEVICE", "cpu"}}}) {
    CHECK(resolved({.num_processes = 2}, variables) == LaunchOptions{.settings = {.cpu = true}, .num_processes = 2});
  }
  CHECK(on_cpu(resolved({}, {}, file("cpu", "true"))));
  CHECK(on_cpu(resolved({}, {}, file("torch_device", "cpu"))));
  CHECK(on_cpu(resolved({.settings = {.device = "cpu"}}, {})));
  CHECK_FALSE(on_cpu(resolved({}, {{"ACCELERATE_USE_CPU", "0"}}, file("cpu", "true"))));
  CHECK_FALSE(on_cpu(resolved({.settings = {.device = "cuda"}}, {{"ACCELERATE_USE_CPU", "1"}}, file("cpu", "true"))));
  CHECK(resolved({}, {{"ACCELERATE_BACKEND", "mpi"}}).settings.backend == "mpi");
  CHECK(resolved({}, {}, file("backend", "mpi")).settings.backend == "mpi");
  // Ranks on GPUs use it anyway, ranks on the CPU refuse it.
  CHECK_FALSE(resolved({}, {{"ACCELERATE_BACKEND", "nccl"}}).settings.backend.has_value());
  CHECK(resolved({.settings = {.backend = "gloo"}}, {{"ACCELERATE_BACKEND", "mpi"}}, file("backend", "mpi"))
            .settings.backend == "gloo");
}

TEST_CASE("one GPU by its number implies one rank unless the number of ranks is given") {
  for (const auto& options : {LaunchOptions{.settings = {.device = "cuda:1"}}, LaunchOptions{}}) {
    const Variables variables{{"ACCELERATE_TORCH_DEVICE", "cuda:1"}};
    CHECK(number_of_processes(resolved(options, variables), two_gpus) == 1);
  }
  CHECK(number_of_processes(resolved({.settings = {.device = "cuda:1"}, .num_processes = 2}, {}), two_gpus) == 2);
  CHECK(number_of_processes(resolved({.settings = {.device = "cuda"}}, {}), two_gpus) == 2);
}

TEST_CASE("a device by its number implies one rank per machine, except with hosts") {
  const accelerate::env::GivenSettings first{.device = "cuda:0"};
  CHECK(resolved({.settings = first, .num_machines = 2, .main_process_ip = "a"}, {}).num_processes == 2);
  CHECK_FALSE(resolved({.settings = first, .hosts = "a:4,b:4"}, {}).num_processes);
  CHECK_FALSE(resolved({.settings = first, .hostfile = "h"}, {}).num_processes);
  CHECK_FALSE(resolved({.settings = first, .mpirun_hostfile = "h"}, {}).num_processes);
  CHECK_FALSE(resolved({.settings = first, .num_machines = 2, .ranks_per_machine = "2,1"}, {}).num_processes);
}

TEST_CASE("the launcher serves MPI on request of an option, the environment or the config file") {
  CHECK(wants_mpi(resolved({.num_processes = 2}, {{"ACCELERATE_USE_CPU", "1"}}), two_gpus));
  CHECK(wants_mpi(resolved({.num_processes = 2}, {{"ACCELERATE_BACKEND", "mpi"}}), two_gpus));
  CHECK(wants_mpi(resolved({.num_processes = 2}, {}, file("cpu", "true")), two_gpus));
  CHECK(wants_mpi(resolved({.num_processes = 2}, {}, file("backend", "mpi")), two_gpus));
  CHECK_FALSE(wants_mpi(resolved({.num_processes = 2}, {}), two_gpus));
  CHECK_FALSE(
      wants_mpi(resolved({.settings = {.cpu = true}, .num_processes = 2}, {{"ACCELERATE_BACKEND", "gloo"}}), two_gpus));
}

TEST_CASE("a variable that the command line overrides with another value is reported") {
  CHECK(
      conflicts({.settings = {.gradient_accumulation_steps = 2}}, {{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "8"}}) ==
      Lines{"gradient_accumulation_steps is 2 from the command line; not used: 8 in "
            "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"});
  CHECK(conflicts({.settings = {.backend = "gloo"}}, {{"ACCELERATE_BACKEND", "mpi"}}) ==
        Lines{"backend is gloo from the command line; not used: mpi in ACCELERATE_BACKEND"});
  CHECK(conflicts({.settings = {.backend = "nccl"}}, {{"ACCELERATE_BACKEND", "mpi"}}) ==
        Lines{"backend is nccl from the command line; not used: mpi in ACCELERATE_BACKEND"});
  CHECK(conflicts({.settings = {.cpu = true}}, {{"ACCELERATE_TORCH_DEVICE", "cuda"}}) ==
        Lines{"cpu is true from the command line; not used: torch_device cuda in ACCELERATE_TORCH_DEVICE"});
  CHECK(conflicts({.settings = {.threads_per_rank = 3}}, {{"OMP_NUM_THREADS", "4"}}) ==
        Lines{"threads_per_rank is 3 from the command line; not used: 4 in OMP_NUM_THREADS"});
  CHECK(conflicts({.settings = {.device = "cuda:1"}}, {{"ACCELERATE_USE_CPU", "1"}}) ==
        Lines{"device is cuda:1 from the command line; not used: cpu true in ACCELERATE_USE_CPU"});
  CHECK(conflicts({.settings = {.debug = true}}, {{"ACCELERATE_DEBUG_MODE", "true"}}).empty());
  CHECK(conflicts({.settings = {.gradient_accumulation_steps = 2}}, {}, file("gradient_accumulation_steps", "8")) ==
        Lines{"gradient_accumulation_steps is 2 from the command line; not used: 8 in f"});
  CHECK(resolved({.settings = {.backend = "nccl"}}, {{"ACCELERATE_BACKEND", "mpi"}}, file("backend", "mpi"))
            .settings.backend == "nccl");
}

TEST_CASE("hosts and machines of weaker sources are ignored if the command line has others") {
  const Variables hosts{{"ACCELERATE_HOSTS", "gpu-a:4"}};
  CHECK_FALSE(resolved({.runner = "local"}, hosts).hosts);
  CHECK(conflicts({.runner = "local"}, hosts) ==
        Lines{"hosts gpu-a:4 is not used: the command line has --runner local"});
  CHECK_FALSE(resolved({.runner = "local"}, {}, file("hostfile", "h")).hostfile);
  CHECK_FALSE(resolved({.runner = "local"}, {}, file("mpirun_hostfile", "h")).mpirun_hostfile);
  CHECK(resolved({.runner = "local", .hosts = "a"}, hosts).hosts == "a");  // refused later
  CHECK(resolved({.runner = "ssh"}, hosts).hosts == "gpu-a:4");
  const auto ranks = file("ranks_per_machine", "4,2");
  CHECK(resolved({.num_machines = 2}, {}, ranks).ranks_per_machine == "4,2");
  CHECK(conflicts({.num_processes = 2, .num_machines = 1}, {}, ranks) ==
        Lines{"ranks_per_machine 4,2 is not used: the command line has --num_machines 1"});
  CHECK(conflicts({.num_processes = 2, .num_machines = 1}, {}, file("ranks_per_machine", "4")) ==
        Lines{"ranks_per_machine 4 is not used: the command line has --num_processes 2"});
  CHECK(conflicts({.num_processes = 4, .num_machines = 1}, {}, file("ranks_per_machine", "4")).empty());
}

TEST_CASE("backend auto overrides a name in a weaker source: command line, variable, config file") {
  const Variables gloo{{"ACCELERATE_BACKEND", "gloo"}};
  const LaunchOptions any{.settings = {.backend = "auto"}, .num_processes = 2};
  CHECK(resolved(any, gloo).settings.backend == "auto");  // passed to the ranks in place of gloo
  CHECK(resolved(any, {}, file("backend", "gloo")).settings.backend == "auto");
  CHECK(conflicts(any, gloo) == Lines{"backend is auto from the command line; not used: gloo in ACCELERATE_BACKEND"});
  const Variables variable{{"ACCELERATE_BACKEND", "auto"}};
  CHECK_FALSE(resolved({}, variable, file("backend", "gloo")).settings.backend);
  CHECK(resolved({}, {}, file("backend", "auto")).settings.backend == "auto");
  CHECK(wants_mpi(resolved({.settings = {.cpu = true, .backend = "auto"}, .num_processes = 2}, gloo), two_gpus));
  CHECK_FALSE(wants_mpi(resolved(any, gloo), two_gpus));
}

TEST_CASE("resolved values are given ones or defaults; values that are determined later stay unset") {
  const auto result = resolve_options(
      {.num_machines = 2}, {{"ACCELERATE_GRACE_TIME", "7"}, {"ACCELERATE_TIMEOUT", "9"}}, file("max_restarts", "3"));
  CHECK(result.values.num_machines == 2);
  CHECK(result.values.grace_time == std::chrono::seconds(7));
  CHECK(result.values.settings.timeout == std::chrono::seconds(9));
  CHECK(result.values.max_restarts == 3);
  CHECK(result.values.machine_rank == 0);
  CHECK_FALSE(result.values.num_processes);
  CHECK_FALSE(result.values.settings.backend);
  CHECK_FALSE(result.options.machine_rank);  // a value that was not given is not forwarded as given
  CHECK_FALSE(result.options.settings.timeout);
}

TEST_CASE("a timeout on the command line applies to the launcher too") {
  CHECK(
      resolve_options({.settings = {.timeout = std::chrono::seconds(7)}}, {{"ACCELERATE_TIMEOUT", "9"}}, {}).timeout ==
      std::chrono::seconds(7));
  CHECK(resolve_options({}, {{"ACCELERATE_TIMEOUT", "9"}}, {}).timeout == std::chrono::seconds(9));
  CHECK(resolve_options({}, {}, {}).timeout == std::chrono::seconds(600));
}

TEST_CASE("settings of the file are exported to the ranks unless they are overridden") {
  CHECK(resolved({}, {}, file("gradient_accumulation_steps", "8")).settings.gradient_accumulation_steps == 8);
  CHECK_FALSE(resolved({}, {{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2"}}, file("gradient_accumulation_steps", "8"))
                  .settings.gradient_accumulation_steps);
  CHECK_FALSE(resolved({.settings = {.device = "cuda"}}, {}, file("cpu", "true")).settings.cpu);
  CHECK_FALSE(resolved({.settings = {.cpu = true}}, {}, file("torch_device", "cuda")).settings.device);
  CHECK(resolved({}, {}, file("torch_device", "cuda:1")).settings.device == "cuda:1");
}

TEST_CASE("a value that the library would refuse is refused before a rank starts") {
  CHECK_THROWS_WITH_AS(resolve_options({}, {{"ACCELERATE_BACKEND", "nonsense"}}, {}),
                       "settings: ACCELERATE_BACKEND is 'nonsense', must be mpi, gloo or nccl", accelerate::Error);
}

// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/machine_placement.hpp"

#include <doctest/doctest.h>

using accelerate::launch::LaunchError;
using accelerate::launch::LaunchOptions;
using accelerate::launch::Machine;
using accelerate::launch::MachinePlacement;
using accelerate::launch::place_of;

namespace {

const Machine no_gpus{};
const Machine two_gpus{.gpus = 2};

LaunchOptions machines(int64_t count, int64_t rank) {
  return {.num_machines = count, .machine_rank = rank, .main_process_ip = "gpu-a"};
}

std::string refusal(LaunchOptions options, std::optional<int64_t> processes = {}) {
  if (processes) options.num_processes = processes;
  try {
    (void)place_of(options, no_gpus);
  } catch (const LaunchError& error) {
    CHECK(error.exit_code() == 2);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("one machine has all ranks") {
  const auto place = place_of({.num_processes = 3}, no_gpus);
  CHECK(place == MachinePlacement{.ranks_of_machine = {3}});
  CHECK(place.first_rank() == 0);
  CHECK(place.world_size() == 3);
  CHECK(place_of({}, two_gpus) == MachinePlacement{.ranks_of_machine = {2}});
  CHECK(place_of({.settings = {.cpu = true}}, two_gpus) == MachinePlacement{.ranks_of_machine = {1}});
}

TEST_CASE("machines have equally many ranks in the order of their ranks") {
  auto options = machines(3, 1);
  options.num_processes = 6;
  const auto place = place_of(options, no_gpus);
  CHECK(place == MachinePlacement{.ranks_of_machine = {2, 2, 2}, .machine_rank = 1});
  CHECK(place.first_rank() == 2);
  CHECK(place.ranks_here() == 2);
  CHECK(place.world_size() == 6);
  CHECK(place_of(machines(2, 1), two_gpus).world_size() == 4);  // every machine equals this one
}

TEST_CASE("machines may have different numbers of ranks if these are given") {
  auto options = machines(3, 1);
  options.ranks_per_machine = "4,2,1";
  const auto place = place_of(options, no_gpus);
  CHECK(place == MachinePlacement{.ranks_of_machine = {4, 2, 1}, .machine_rank = 1});
  CHECK(place.first_rank() == 4);
  CHECK(place.world_size() == 7);
  CHECK(refusal(options, 8) == "accelerate_launch: ranks_per_machine is 4,2,1, which are 7 ranks; num_processes is 8");
  options.num_machines = 2;
  CHECK(refusal(options) == "accelerate_launch: ranks_per_machine is 4,2,1, which are 3 machines; num_machines is 2");
}

TEST_CASE("a job has at most 4096 ranks, however they are counted") {
  auto options = machines(2, 0);
  options.ranks_per_machine = "4096,1";
  CHECK(refusal(options) == "accelerate_launch: 4097 ranks on 2 machines, must be at most 4096");
  options.ranks_per_machine = "4095,1";
  CHECK(place_of(options, no_gpus).world_size() == 4096);
}

TEST_CASE("a list of ranks is numbers with commas") {
  using accelerate::launch::parse_ranks;
  CHECK(parse_ranks("4,2") == std::vector<int64_t>{4, 2});
  for (const char* none : {"", ",", "4,", "0", "-1", "x", "4 2", "4097"}) {
    CAPTURE(none);
    CHECK_FALSE(parse_ranks(none));
  }
}

TEST_CASE("an invalid machine, an uneven division and a missing address have separate errors") {
  CHECK(refusal(machines(2, 2)) == "accelerate_launch: machine_rank is 2, must be below num_machines, which is 2");
  CHECK(refusal({.machine_rank = 1}) == "accelerate_launch: machine_rank is 1, must be below num_machines, which is 1");
  CHECK(refusal(machines(2, 0), 3) ==
        "accelerate_launch: num_processes is 3 on 2 machines, must be a multiple of 2: it counts the whole job");
  CHECK(refusal(machines(4, 0), 2) ==
        "accelerate_launch: num_processes is 2 on 4 machines, must be a multiple of 4: it counts the whole job");
  CHECK(
      refusal({.num_machines = 2, .machine_rank = 0}) ==
      "accelerate_launch: num_machines is 2 without --main_process_ip; give the name or address of machine 0, the same "
      "on all of them");
  auto any_port = machines(2, 0);
  any_port.main_process_port = 0;
  CHECK(
      refusal(any_port) ==
      "accelerate_launch: --main_process_port 0 on 2 machines: they cannot agree on a free one; give one, the same on "
      "all of them");
}

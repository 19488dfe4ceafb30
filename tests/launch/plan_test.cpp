// SPDX-License-Identifier: Apache-2.0
#include "launch/plan.hpp"

#include <doctest/doctest.h>

#include <string>

using accelerate::env::Variables;
using accelerate::launch::LaunchOptions;
using accelerate::launch::Machine;
using accelerate::launch::plan;

namespace {

const Machine eight_cores{.gpus = 0, .physical_cores = 8, .usable_cpus = 16};
const Machine two_gpus{.gpus = 2, .physical_cores = 8, .usable_cpus = 16};

Variables rank_variables(const std::string& rank, const std::string& size) {
  return {{"RANK", rank},
          {"WORLD_SIZE", size},
          {"LOCAL_RANK", rank},
          {"LOCAL_WORLD_SIZE", size},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_RESTART_COUNT", "0"},
          {"TORCHELASTIC_USE_AGENT_STORE", "False"}};
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Variables first(const LaunchOptions& options, const Machine& machine, const Variables& inherited, bool mpi = false) {
  return plan(options, machine, inherited, {.port = 29500, .serve_mpi = mpi}).workers.at(0).environment;
}

}  // namespace

TEST_CASE("every rank gets the command, torchrun's variables and what we inherited") {
  const LaunchOptions options{.num_processes = 2, .command = {"./train", "--epochs", "3"}};
  const auto two = plan(options, eight_cores, {{"HOME", "/root"}}, {.port = 29500});
  REQUIRE(two.workers.size() == 2);
  CHECK_FALSE(two.serve_mpi);
  const Variables inherited{{"HOME", "/root"}, {"OMP_NUM_THREADS", "4"}};
  CHECK(two.workers[0].rank == 0);
  CHECK(two.workers[1].rank == 1);
  CHECK(two.workers[0].command == options.command);
  CHECK(two.workers[1].command == options.command);
  CHECK(two.workers[0].environment == with(rank_variables("0", "2"), inherited));
  CHECK(two.workers[1].environment == with(rank_variables("1", "2"), inherited));
}

TEST_CASE("without --num_processes there is a rank per GPU, else one") {
  using accelerate::launch::number_of_processes;
  CHECK(number_of_processes({}, eight_cores) == 1);
  CHECK(number_of_processes({}, two_gpus) == 2);
  CHECK(number_of_processes({.cpu = true}, two_gpus) == 1);
  CHECK(number_of_processes({.num_processes = 3}, two_gpus) == 3);
}

TEST_CASE("settings reach the ranks only when they are given") {
  const LaunchOptions all{
      .cpu = true, .num_processes = 1, .backend = "gloo", .gradient_accumulation_steps = 4, .debug = true};
  const Variables settings{{"ACCELERATE_USE_CPU", "1"},
                           {"ACCELERATE_BACKEND", "gloo"},
                           {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"},
                           {"ACCELERATE_DEBUG_MODE", "1"},
                           {"OMP_NUM_THREADS", "8"}};
  CHECK(first(all, eight_cores, {}) == with(rank_variables("0", "1"), settings));
  CHECK(first({}, eight_cores, {}) == with(rank_variables("0", "1"), {{"OMP_NUM_THREADS", "8"}}));
}

TEST_CASE("nccl is what GPUs get anyway: asked for, it is not exported, and without a GPU it is refused") {
  using accelerate::launch::check_gpus;
  const LaunchOptions nccl{.backend = "nccl"};
  CHECK_FALSE(first(nccl, two_gpus, {}).contains("ACCELERATE_BACKEND"));
  CHECK_NOTHROW(check_gpus(nccl, two_gpus));
  CHECK_NOTHROW(check_gpus({.backend = "gloo"}, eight_cores));
  CHECK_NOTHROW(check_gpus({}, eight_cores));
  CHECK_THROWS_WITH_AS(check_gpus(nccl, eight_cores),
                       "accelerate_launch: --backend nccl needs GPUs, but 0 are visible; use mpi or gloo, or look at "
                       "nvidia-smi and CUDA_VISIBLE_DEVICES",
                       accelerate::launch::LaunchError);
}

TEST_CASE("the command line wins over the environment, and the environment stays otherwise") {
  const Variables inherited{{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2"}, {"ACCELERATE_BACKEND", "mpi"}};
  const auto given = first({.gradient_accumulation_steps = 4}, eight_cores, inherited);
  CHECK(given.at("ACCELERATE_GRADIENT_ACCUMULATION_STEPS") == "4");
  CHECK(given.at("ACCELERATE_BACKEND") == "mpi");
}

TEST_CASE("threads per rank: the option, else the environment, else physical cores shared out, at least one") {
  const auto threads = [](const LaunchOptions& options, const Variables& inherited) {
    return first(options, eight_cores, inherited).at("OMP_NUM_THREADS");
  };
  CHECK(threads({.num_processes = 3}, {}) == "2");
  CHECK(threads({.num_processes = 99}, {}) == "1");
  CHECK(threads({.num_processes = 3}, {{"OMP_NUM_THREADS", "5"}}) == "5");
  CHECK(threads({.num_processes = 3, .num_cpu_threads_per_process = 7}, {{"OMP_NUM_THREADS", "5"}}) == "7");
}

TEST_CASE("the place that another launcher gave this process does not reach the ranks") {
  const Variables inherited{{"RANK", "7"},
                            {"WORLD_SIZE", "9"},
                            {"TORCHELASTIC_RUN_ID", "x"},
                            {"GROUP_RANK", "3"},
                            {"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_MCA_ess", "pmi"},
                            {"PMIX_RANK", "1"},
                            {"PMI_RANK", "1"},
                            {"MPI_LOCALRANKID", "1"},
                            {"MV2_COMM_WORLD_SIZE", "2"},
                            {"ORTE_X", "1"},
                            {"SLURM_JOB_ID", "5"},
                            {"OMP_NUM_THREADS", "1"}};
  CHECK(first({}, eight_cores, inherited) ==
        with(rank_variables("0", "1"), {{"OMP_NUM_THREADS", "1"}, {"SLURM_JOB_ID", "5"}}));
}

TEST_CASE("MPI is served when asked for, and by default to several ranks on a CPU") {
  using accelerate::launch::wants_mpi;
  CHECK(wants_mpi({.num_processes = 1, .backend = "mpi"}, eight_cores));
  CHECK(wants_mpi({.num_processes = 2, .backend = "mpi"}, two_gpus));
  CHECK(wants_mpi({.num_processes = 2}, eight_cores));
  CHECK(wants_mpi({.cpu = true, .num_processes = 2}, two_gpus));
  CHECK_FALSE(wants_mpi({.num_processes = 1}, eight_cores));
  CHECK_FALSE(wants_mpi({.num_processes = 2}, two_gpus));
  CHECK_FALSE(wants_mpi({}, two_gpus));
  CHECK_FALSE(wants_mpi({.num_processes = 2, .backend = "gloo"}, eight_cores));
}

TEST_CASE("ranks whose MPI we serve get Open MPI's hints and lose the batch system's variables") {
  const Variables inherited{{"SLURM_JOB_ID", "5"}, {"PBS_JOBID", "5"}, {"OMP_NUM_THREADS", "1"}};
  CHECK(first({}, eight_cores, inherited, true) == with(rank_variables("0", "1"), {{"OMP_NUM_THREADS", "1"},
                                                                                   {"OMPI_MCA_schizo", "^orte,ompi"},
                                                                                   {"OMPI_MCA_pml", "ob1"},
                                                                                   {"OMPI_MCA_btl", "vader,self"}}));
}

TEST_CASE("what the user chose for Open MPI stays") {
  const Variables inherited{{"OMPI_MCA_pml", "ucx"}, {"OMPI_MCA_coll_tuned_use_dynamic_rules", "1"}};
  const auto variables = first({}, eight_cores, inherited, true);
  CHECK(variables.at("OMPI_MCA_pml") == "ucx");
  CHECK(variables.at("OMPI_MCA_btl") == "vader,self");
  CHECK(variables.at("OMPI_MCA_coll_tuned_use_dynamic_rules") == "1");
}

TEST_CASE("more ranks than processors yield while they wait") {
  CHECK_FALSE(first({.num_processes = 16}, eight_cores, {}, true).contains("OMPI_MCA_mpi_yield_when_idle"));
  CHECK(first({.num_processes = 17}, eight_cores, {}, true).at("OMPI_MCA_mpi_yield_when_idle") == "1");
  CHECK_FALSE(first({.num_processes = 17}, eight_cores, {}, false).contains("OMPI_MCA_mpi_yield_when_idle"));
}

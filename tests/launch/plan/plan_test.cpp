// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/plan.hpp"

#include <doctest/doctest.h>

#include <string>

using accelerate::env::Variables;
using accelerate::launch::LaunchOptions;
using accelerate::launch::Machine;
using accelerate::launch::plan;

namespace {

const Machine no_gpus{.gpus = 0, .usable_cpus = 16};
const Machine two_gpus{.gpus = 2, .usable_cpus = 16};

// Variables of a rank on the CPU.
Variables rank_variables(const std::string& rank, const std::string& size) {
  return {{"RANK", rank},
          {"WORLD_SIZE", size},
          {"LOCAL_RANK", rank},
          {"LOCAL_WORLD_SIZE", size},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_RESTART_COUNT", "0"},
          {"TORCHELASTIC_MAX_RESTARTS", "0"},
          {"TORCHELASTIC_USE_AGENT_STORE", "False"},
          {"MALLOC_MMAP_THRESHOLD_", "33554432"},
          {"MALLOC_TRIM_THRESHOLD_", "1073741824"}};
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

Variables first(const LaunchOptions& options, const Machine& machine, const Variables& inherited, bool mpi = false) {
  return plan(options, machine, inherited, {.port = 29500, .serve_mpi = mpi}).workers.at(0).environment;
}

}  // namespace

TEST_CASE("every rank gets the command, torchrun's variables and the inherited environment") {
  const LaunchOptions options{.num_processes = 2, .command = {"./train", "--epochs", "3"}};
  const auto two = plan(options, no_gpus, {{"HOME", "/root"}}, {.port = 29500});
  REQUIRE(two.workers.size() == 2);
  CHECK_FALSE(two.serve_mpi);
  const Variables inherited{{"HOME", "/root"}};
  CHECK(two.workers[0].rank == 0);
  CHECK(two.workers[1].rank == 1);
  CHECK(two.workers[0].command == options.command);
  CHECK(two.workers[1].command == options.command);
  CHECK(two.workers[0].environment == with(rank_variables("0", "2"), inherited));
  CHECK(two.workers[1].environment == with(rank_variables("1", "2"), inherited));
}

TEST_CASE("every rank gets the job's id in place of an inherited one") {
  const auto two = plan({.num_processes = 2}, no_gpus, {{"ACCELERATE_JOB_ID", "outer"}}, {.port = 1, .job_id = "own"});
  CHECK(two.workers[0].environment.at("ACCELERATE_JOB_ID") == "own");
  CHECK(two.workers[1].environment.at("ACCELERATE_JOB_ID") == "own");
}

TEST_CASE("ranks get the number of the attempt and the maximum number of restarts") {
  const auto two = plan({.num_processes = 1, .max_restarts = 3}, no_gpus, {{"TORCHELASTIC_MAX_RESTARTS", "9"}},
                        {.port = 1, .restart_count = 2});
  CHECK(two.workers[0].environment.at("TORCHELASTIC_RESTART_COUNT") == "2");
  CHECK(two.workers[0].environment.at("TORCHELASTIC_MAX_RESTARTS") == "3");
}

TEST_CASE("without --num_processes one rank per GPU is planned, else one") {
  using accelerate::launch::number_of_processes;
  CHECK(number_of_processes({}, no_gpus) == 1);
  CHECK(number_of_processes({}, two_gpus) == 2);
  CHECK(number_of_processes({.settings = {.cpu = true}}, two_gpus) == 1);
  CHECK(number_of_processes({.num_processes = 3}, two_gpus) == 3);
}

TEST_CASE("only given settings are exported to the ranks") {
  const LaunchOptions all{.settings = {.gradient_accumulation_steps = 4, .cpu = true, .backend = "gloo", .debug = true},
                          .num_processes = 1};
  const Variables settings{{"ACCELERATE_USE_CPU", "1"},
                           {"ACCELERATE_BACKEND", "gloo"},
                           {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4"},
                           {"ACCELERATE_DEBUG_MODE", "1"}};
  CHECK(first(all, no_gpus, {}) == with(rank_variables("0", "1"), settings));
  CHECK(first({}, no_gpus, {}) == rank_variables("0", "1"));
}

TEST_CASE("a requested nccl is the default for GPUs, so it is not exported; without a GPU it is refused") {
  using accelerate::launch::check_gpus;
  const LaunchOptions nccl{.settings = {.backend = "nccl"}};
  CHECK_FALSE(first(nccl, two_gpus, {}).contains("ACCELERATE_BACKEND"));
  CHECK_NOTHROW(check_gpus(nccl, two_gpus));
  CHECK_NOTHROW(check_gpus({.settings = {.backend = "gloo"}}, no_gpus));
  CHECK_NOTHROW(check_gpus({}, no_gpus));
  CHECK_THROWS_WITH_AS(check_gpus(nccl, no_gpus),
                       "accelerate_launch: --backend nccl needs GPUs, but 0 are visible; use mpi or gloo, or look at "
                       "nvidia-smi and CUDA_VISIBLE_DEVICES",
                       accelerate::launch::LaunchError);
  CHECK_THROWS_WITH_AS(check_gpus({.settings = {.cpu = true, .backend = "nccl"}}, two_gpus),
                       "accelerate_launch: --backend nccl needs GPUs, but ACCELERATE_USE_CPU, ACCELERATE_TORCH_DEVICE "
                       "or the config file requests the CPU; use mpi or gloo",
                       accelerate::launch::LaunchError);
}

TEST_CASE("the command line overrides the environment, and other variables do not change") {
  const Variables inherited{{"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2"}, {"ACCELERATE_BACKEND", "mpi"}};
  const auto given = first({.settings = {.gradient_accumulation_steps = 4}}, no_gpus, inherited);
  CHECK(given.at("ACCELERATE_GRADIENT_ACCUMULATION_STEPS") == "4");
  CHECK(given.at("ACCELERATE_BACKEND") == "mpi");
}

TEST_CASE("a given number of threads is exported; by default the library divides the cores") {
  CHECK_FALSE(first({.num_processes = 3}, no_gpus, {}).contains("OMP_NUM_THREADS"));
  CHECK(first({.num_processes = 3}, no_gpus, {{"OMP_NUM_THREADS", "5"}}).at("OMP_NUM_THREADS") == "5");
  CHECK(first({.settings = {.threads_per_rank = 7}}, no_gpus, {{"OMP_NUM_THREADS", "5"}}).at("OMP_NUM_THREADS") == "7");
}

TEST_CASE("settings that --cpu, a GPU's name or nccl override are not exported") {
  const Variables cuda{{"ACCELERATE_TORCH_DEVICE", "cuda:1"}};
  CHECK_FALSE(first({.settings = {.cpu = true}}, two_gpus, cuda).contains("ACCELERATE_TORCH_DEVICE"));
  CHECK(first({}, two_gpus, cuda).at("ACCELERATE_TORCH_DEVICE") == "cuda:1");
  CHECK(first({.settings = {.cpu = true}}, two_gpus, {{"ACCELERATE_TORCH_DEVICE", "cpu"}})
            .at("ACCELERATE_TORCH_DEVICE") == "cpu");
  const auto by_name = first({.settings = {.device = "cuda:1"}}, two_gpus, {{"ACCELERATE_USE_CPU", "1"}});
  CHECK(by_name.at("ACCELERATE_TORCH_DEVICE") == "cuda:1");
  CHECK_FALSE(by_name.contains("ACCELERATE_USE_CPU"));
  CHECK_FALSE(first({.settings = {.backend = "nccl"}}, two_gpus, {{"ACCELERATE_BACKEND", "mpi"}})
                  .contains("ACCELERATE_BACKEND"));
}

TEST_CASE("rank variables of another launcher are not exported") {
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
  CHECK(first({}, no_gpus, inherited) ==
        with(rank_variables("0", "1"), {{"OMP_NUM_THREADS", "1"}, {"SLURM_JOB_ID", "5"}}));
}

TEST_CASE("the launcher serves MPI on request, and by default for several CPU ranks") {
  using accelerate::launch::wants_mpi;
  CHECK(wants_mpi({.settings = {.backend = "mpi"}, .num_processes = 1}, no_gpus));
  CHECK(wants_mpi({.settings = {.backend = "mpi"}, .num_processes = 2}, two_gpus));
  CHECK(wants_mpi({.num_processes = 2}, no_gpus));
  CHECK(wants_mpi({.settings = {.cpu = true}, .num_processes = 2}, two_gpus));
  CHECK_FALSE(wants_mpi({.num_processes = 1}, no_gpus));
  CHECK_FALSE(wants_mpi({.num_processes = 2}, two_gpus));
  CHECK_FALSE(wants_mpi({}, two_gpus));
  CHECK_FALSE(wants_mpi({.settings = {.backend = "gloo"}, .num_processes = 2}, no_gpus));
}

TEST_CASE("MPI ranks get Open MPI's hints, without the batch system's variables") {
  const Variables inherited{{"SLURM_JOB_ID", "5"}, {"PBS_JOBID", "5"}, {"OMP_NUM_THREADS", "1"}};
  CHECK(first({}, no_gpus, inherited, true) == with(rank_variables("0", "1"), {{"OMP_NUM_THREADS", "1"},
                                                                               {"OMPI_MCA_schizo", "^orte,ompi"},
                                                                               {"OMPI_MCA_pml", "ob1"},
                                                                               {"OMPI_MCA_btl", "vader,self"}}));
}

TEST_CASE("CPU ranks keep freed memory unless the user tuned malloc; GPU ranks do not") {
  const auto on_gpus = first({}, two_gpus, {});
  CHECK_FALSE(on_gpus.contains("MALLOC_MMAP_THRESHOLD_"));
  CHECK_FALSE(on_gpus.contains("MALLOC_TRIM_THRESHOLD_"));
  CHECK(first({.settings = {.cpu = true}}, two_gpus, {}).at("MALLOC_TRIM_THRESHOLD_") == "1073741824");
  CHECK(first({}, no_gpus, {{"MALLOC_TRIM_THRESHOLD_", "1"}}).at("MALLOC_TRIM_THRESHOLD_") == "1");
  const Variables tuned{{"GLIBC_TUNABLES", "glibc.malloc.trim_threshold=1"}};
  CHECK_FALSE(first({}, no_gpus, tuned).contains("MALLOC_TRIM_THRESHOLD_"));
}

TEST_CASE("the user's settings of Open MPI are kept") {
  const Variables inherited{{"OMPI_MCA_pml", "ucx"}, {"OMPI_MCA_coll_tuned_use_dynamic_rules", "1"}};
  const auto variables = first({}, no_gpus, inherited, true);
  CHECK(variables.at("OMPI_MCA_pml") == "ucx");
  CHECK(variables.at("OMPI_MCA_btl") == "vader,self");
  CHECK(variables.at("OMPI_MCA_coll_tuned_use_dynamic_rules") == "1");
}

TEST_CASE("more ranks than processors yield while they wait") {
  CHECK_FALSE(first({.num_processes = 16}, no_gpus, {}, true).contains("OMPI_MCA_mpi_yield_when_idle"));
  CHECK(first({.num_processes = 17}, no_gpus, {}, true).at("OMPI_MCA_mpi_yield_when_idle") == "1");
  CHECK_FALSE(first({.num_processes = 17}, no_gpus, {}, false).contains("OMPI_MCA_mpi_yield_when_idle"));
}

TEST_CASE("the ranks of a machine follow those of the previous machines") {
  const LaunchOptions options{
      .num_processes = 4, .num_machines = 2, .machine_rank = 1, .main_process_ip = "gpu-a", .command = {"./train"}};
  const auto here = plan(options, no_gpus, {}, {.address = "gpu-a", .port = 29500});
  REQUIRE(here.workers.size() == 2);
  CHECK(here.workers[0].rank == 2);
  CHECK(here.workers[1].rank == 3);
  CHECK(here.workers[1].environment ==
        with(rank_variables("3", "4"), {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "gpu-a"}}));
}

TEST_CASE("MPI is not served over several machines unless it is requested") {
  using accelerate::launch::wants_mpi;
  CHECK_FALSE(wants_mpi({.num_processes = 4, .num_machines = 2, .main_process_ip = "a"}, no_gpus));
}

TEST_CASE("ranks are bound to their part of the processors on request") {
  const Machine machine{.usable_cpus = 4, .processors = {{0, 1, 2, 3}}};
  CHECK(plan({.num_processes = 2}, machine, {}, {}).workers[1].processors.empty());
  const auto bound = plan({.num_processes = 2, .enable_cpu_affinity = true}, machine, {}, {});
  CHECK(bound.workers[0].processors == std::vector<int>{0, 1});
  CHECK(bound.workers[1].processors == std::vector<int>{2, 3});
}

TEST_CASE("the ranks get the requested GPUs") {
  CHECK(first({.gpu_ids = "1,0"}, two_gpus, {{"CUDA_VISIBLE_DEVICES", "0"}}).at("CUDA_VISIBLE_DEVICES") == "1,0");
  CHECK(first({.gpu_ids = "all"}, two_gpus, {{"CUDA_VISIBLE_DEVICES", "0"}}).at("CUDA_VISIBLE_DEVICES") == "0");
  CHECK_FALSE(first({}, two_gpus, {}).contains("CUDA_VISIBLE_DEVICES"));
}

TEST_CASE("the ranks get their role if one is given") {
  CHECK(first({.role = "trainer"}, no_gpus, {{"ROLE_NAME", "outer"}}).at("ROLE_NAME") == "trainer");
  CHECK_FALSE(first({}, no_gpus, {{"ROLE_NAME", "outer"}}).contains("ROLE_NAME"));
}

TEST_CASE("the launcher's own variables are not exported") {
  const Variables inherited{{"ACCELERATE_NUM_PROCESSES", "2"}, {"ACCELERATE_CONFIG_FILE", "f"}, {"MINE", "1"}};
  CHECK(first({}, no_gpus, inherited) == with(rank_variables("0", "1"), {{"MINE", "1"}}));
}

TEST_CASE("more ranks than GPUs are refused, except for shared GPUs and CPU ranks") {
  using accelerate::launch::check_gpus;
  CHECK_THROWS_WITH_AS(check_gpus({.num_processes = 3}, two_gpus),
                       "accelerate_launch: 3 ranks on this machine, but 2 GPUs are visible; start fewer, or "
                       "--allow_shared_gpus, or --cpu",
                       accelerate::launch::LaunchError);
  CHECK_THROWS_WITH_AS(check_gpus({.num_processes = 4, .num_machines = 2, .main_process_ip = "a"}, {.gpus = 1}),
                       "accelerate_launch: 2 ranks on this machine, but 1 GPU is visible; start fewer, or "
                       "--allow_shared_gpus, or --cpu",
                       accelerate::launch::LaunchError);
  CHECK_NOTHROW(check_gpus({.num_processes = 2}, two_gpus));
  CHECK_NOTHROW(check_gpus({.settings = {.allow_shared_gpus = true}, .num_processes = 3}, two_gpus));
  CHECK_NOTHROW(check_gpus({.settings = {.cpu = true}, .num_processes = 3}, two_gpus));
  CHECK_NOTHROW(check_gpus({.num_processes = 3}, no_gpus));
}

TEST_CASE("GPU numbers that do not exist are refused if ranks would silently use the CPU") {
  using accelerate::launch::check_gpu_ids;
  CHECK_THROWS_WITH_AS(check_gpu_ids({.gpu_ids = "2,3"}, 0, 2),
                       "accelerate_launch: gpu_ids is '2,3', which begins with none of the 2 NVIDIA GPUs here; numbers "
                       "are from 0 to 1",
                       accelerate::launch::LaunchError);
  CHECK_NOTHROW(check_gpu_ids({.gpu_ids = "1"}, 1, 2));
  CHECK_NOTHROW(check_gpu_ids({.gpu_ids = "0,1"}, 0, 0));
  CHECK_NOTHROW(check_gpu_ids({.settings = {.cpu = true}, .gpu_ids = "7"}, 0, 2));
}

TEST_CASE("multi_gpu requires several ranks with GPUs") {
  using accelerate::launch::check_gpus;
  using accelerate::launch::LaunchError;
  CHECK_NOTHROW(check_gpus({.multi_gpu = true}, two_gpus));
  CHECK_THROWS_WITH_AS(check_gpus({.multi_gpu = true}, no_gpus),
                       "accelerate_launch: --multi_gpu, but 0 NVIDIA GPUs are visible", LaunchError);
  CHECK_THROWS_WITH_AS(check_gpus({.settings = {.cpu = true}, .multi_gpu = true}, two_gpus),
                       "accelerate_launch: --multi_gpu is given, but the CPU is requested too", LaunchError);
  CHECK_THROWS_WITH_AS(check_gpus({.num_processes = 1, .multi_gpu = true}, two_gpus),
                       "accelerate_launch: --multi_gpu with num_processes 1, must be at least 2", LaunchError);
}

TEST_CASE("one line lists the values that were chosen by default") {
  using accelerate::launch::chosen_ranks_text;
  CHECK_FALSE(chosen_ranks_text({.num_processes = 1}, no_gpus));
  CHECK(chosen_ranks_text({}, no_gpus) ==
        "1 rank, as no NVIDIA GPU is visible, and others are not counted; --num_processes N starts more");
  CHECK(chosen_ranks_text({.settings = {.cpu = true}}, two_gpus) == "1 rank on the CPU; --num_processes N starts more");
  CHECK(chosen_ranks_text({}, two_gpus) ==
        "2 ranks, one per visible GPU; --num_processes N or --cpu chooses otherwise");
  CHECK(chosen_ranks_text({}, {.gpus = 1}) ==
        "1 rank, one per visible GPU; --num_processes N or --cpu chooses otherwise");
}

TEST_CASE("an unused address for a job of one machine is reported") {
  using accelerate::launch::unused_address_text;
  CHECK(unused_address_text({.main_process_ip = "gpu-a"}) ==
        "main_process_ip gpu-a is not used on one machine; its ranks use 127.0.0.1");
  CHECK_FALSE(unused_address_text({}));
  CHECK_FALSE(unused_address_text({.main_process_ip = "127.0.0.1"}));
  CHECK_FALSE(unused_address_text({.num_machines = 2, .main_process_ip = "gpu-a"}));
}

TEST_CASE("more ranks than processors are reported") {
  using accelerate::launch::oversubscription_warning;
  CHECK_FALSE(oversubscription_warning({.num_processes = 16}, no_gpus));
  CHECK(oversubscription_warning({.num_processes = 17}, no_gpus) ==
        "17 ranks share 16 processors, which is slower than one rank on each");
  CHECK_FALSE(oversubscription_warning({.num_processes = 17}, two_gpus));
}

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/env/process_env.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"

namespace env = accelerate::env;
namespace base = accelerate::base;
using env::ProcessEnv;
using env::Source;
using env::Variables;

namespace {

std::string refusal(const Variables& variables) {
  try {
    env::read_process_env(variables);
  } catch (const accelerate::Error& error) {
    CHECK(error.kind() == accelerate::ErrorKind::environment);
    return error.what();
  }
  return "no error";
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [key, value] : more) variables[key] = value;
  return variables;
}

const Variables torchrun{{"RANK", "3"},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "gpu-a"},
                         {"MASTER_PORT", "29500"}};
const Variables open_mpi{{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables slurm{{"SLURM_JOB_ID", "100"},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_PROCID", "6"},
                      {"SLURM_NTASKS", "7"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_NODEID", "3"},
                      {"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"},
                      {"SLURM_STEP_NODELIST", "node[01-04]"}};

/// Collects log lines at debug level during its lifetime.
struct Lines {
  std::vector<std::string> all;
  base::LogLevel before = base::log_level();
  base::LogHandler handler =
      base::set_log_handler([this](base::LogLevel, std::string_view line) { all.emplace_back(line); });
  Lines() {
    base::set_log_level(base::LogLevel::debug);
    base::reset_log_once();
  }
  ~Lines() {
    base::set_log_handler(handler);
    base::set_log_level(before);
  }
};

}  // namespace

TEST_CASE("without variables there is one process") {
  CHECK(env::read_process_env({}) == ProcessEnv{});
  CHECK(env::read_process_env({{"HOME", "/root"}, {"MASTER_ADDR", "x"}, {"RANK", ""}}) == ProcessEnv{});
}

TEST_CASE("the complete variables of every launcher are read") {
  CHECK(env::read_process_env(torchrun) == ProcessEnv{.source = Source::torchrun,
                                                      .rank = 3,
                                                      .world_size = 4,
                                                      .local_rank = 1,
                                                      .local_world_size = 2,
                                                      .master_addr = "gpu-a",
                                                      .master_port = 29500});
  CHECK(env::read_process_env(open_mpi) ==
        ProcessEnv{.source = Source::open_mpi, .rank = 1, .world_size = 2, .local_rank = 1, .local_world_size = 2});
  CHECK(env::read_process_env(
            {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}}) ==
        ProcessEnv{.source = Source::pmi, .rank = 2, .world_size = 4, .local_rank = 0, .local_world_size = 2});
  CHECK(env::read_process_env({{"MV2_COMM_WORLD_RANK", "2"},
                               {"MV2_COMM_WORLD_SIZE", "4"},
                               {"MV2_COMM_WORLD_LOCAL_RANK", "0"},
                               {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}}) ==
        ProcessEnv{.source = Source::mvapich, .rank = 2, .world_size = 4, .local_rank = 0, .local_world_size = 2});
  CHECK(env::read_process_env({{"PMIX_RANK", "2"},
                               {"JSM_NAMESPACE_SIZE", "4"},
                               {"JSM_NAMESPACE_LOCAL_RANK", "0"},
                               {"JSM_NAMESPACE_LOCAL_SIZE", "2"}}) ==
        ProcessEnv{.source = Source::pmix, .rank = 2, .world_size = 4, .local_rank = 0, .local_world_size = 2});
  CHECK(env::read_process_env(slurm) == ProcessEnv{.source = Source::slurm,
                                                   .rank = 6,
                                                   .world_size = 7,
                                                   .local_rank = 0,
                                                   .local_world_size = 1,
                                                   .master_addr = "node01",
                                                   .master_port = 18100,
                                                   .job_id = "100.0"});
}

TEST_CASE("variables of a single process may omit the local names") {
  CHECK(env::read_process_env({{"RANK", "0"}, {"WORLD_SIZE", "1"}}) == ProcessEnv{.source = Source::torchrun});
  CHECK(env::read_process_env({{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}) == ProcessEnv{.source = Source::pmi});
}

TEST_CASE("the first complete launcher's variables are used, incomplete ones are not") {
  CHECK(env::read_process_env(with(slurm, torchrun)).source == Source::torchrun);
  CHECK(env::read_process_env(with(open_mpi, torchrun)).source == Source::torchrun);
  CHECK(env::read_process_env(with(slurm, open_mpi)).source == Source::open_mpi);
  CHECK(env::read_process_env(with(open_mpi, {{"PMIX_RANK", "1"}})).source == Source::open_mpi);
  CHECK(env::read_process_env(with(slurm, {{"PMIX_RANK", "6"}})).source == Source::slurm);
  CHECK(env::read_process_env(with(slurm, {{"PMI_RANK", "6"}, {"PMI_SIZE", "7"}})).source ==
        Source::slurm);  // srun --mpi=pmi2
  CHECK(env::read_process_env(with(open_mpi, {{"LOCAL_RANK", "1"}})).source == Source::open_mpi);
}

TEST_CASE("other launcher variables are reported in one debug line if they differ") {
  {
    Lines lines;
    env::read_process_env(with(slurm, torchrun));
    CHECK(lines.all == std::vector<std::string>{"environment: using torchrun with rank 3 of 4, 1 of 2 here; Slurm has "
                                                "rank 6 of 7, 0 of 1 here and is ignored"});
  }
  {
    Lines lines;
    env::read_process_env(
        with(open_mpi, {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}));
    CHECK(lines.all.empty());
  }
  {
    Lines lines;
    env::read_process_env(with(torchrun, with(open_mpi, {{"OMPI_COMM_WORLD_RANK", "one"}})));
    CHECK(lines.all ==
          std::vector<std::string>{"environment: using torchrun with rank 3 of 4, 1 of 2 here; Open MPI has "
                                   "environment: OMPI_COMM_WORLD_RANK is 'one', must be an integer and is ignored"});
  }
}

TEST_CASE("different launcher variables are reported once, however often they are read") {
  Lines lines;
  env::read_process_env(with(slurm, torchrun));
  env::read_process_env(with(slurm, torchrun));
  CHECK(lines.all.size() == 1);
}

const Variables one_task_step{{"SLURM_JOB_ID", "100"},
                              {"SLURM_STEP_ID", "0"},
                              {"SLURM_PROCID", "0"},
                              {"SLURM_NTASKS", "1"},
                              {"SLURM_LOCALID", "0"},
                              {"SLURM_NODEID", "0"},
                              {"SLURM_STEP_TASKS_PER_NODE", "1"},
                              {"SLURM_STEP_NODELIST", "node01"}};

TEST_CASE("incomplete RANK and WORLD_SIZE that differ from complete variables are refused") {
  CHECK(refusal(with(one_task_step, {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}})) ==
        "environment: RANK=3, WORLD_SIZE=4 and LOCAL_RANK=1 from torchrun without LOCAL_WORLD_SIZE; set the missing "
        "variables, or unset all of them to run as one process");
  CHECK(refusal(with(one_task_step, {{"RANK", "0"}, {"WORLD_SIZE", "4"}})).find("RANK=0 and WORLD_SIZE=4") !=
        std::string::npos);
  CHECK(refusal(with(open_mpi, {{"RANK", "one"}, {"WORLD_SIZE", "2"}})).find("RANK=one") != std::string::npos);
}

TEST_CASE("incomplete launcher variables are reported in one debug line if they differ and are usually complete") {
  const auto describe_variables = [](const Variables& variables) {
    Lines lines;
    env::read_process_env(variables);
    return lines.all;
  };
  using Said = std::vector<std::string>;
  CHECK(describe_variables(with(open_mpi, {{"LOCAL_RANK", "0"}})) ==
        Said{"environment: using Open MPI with rank 1 of 2, 1 of 2 here; LOCAL_RANK=0 is an incomplete set of torchrun "
             "and is ignored"});
  CHECK(describe_variables(with(one_task_step, {{"WORLD_SIZE", "4"}})) ==
        Said{"environment: using Slurm with rank 0 of 1, 0 of 1 here; WORLD_SIZE=4 is an incomplete set of torchrun "
             "and is ignored"});
  CHECK(describe_variables(with(one_task_step, {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "1"}})) ==
        Said{"environment: using Slurm with rank 0 of 1, 0 of 1 here; RANK=0, WORLD_SIZE=1 and LOCAL_RANK=1 is an "
             "incomplete set of torchrun and is ignored"});
  CHECK(describe_variables(with(one_task_step, {{"OMPI_COMM_WORLD_RANK", "1"}})) ==
        Said{"environment: using Slurm with rank 0 of 1, 0 of 1 here; OMPI_COMM_WORLD_RANK=1 is an incomplete set of "
             "Open MPI and is ignored"});
  CHECK(describe_variables(with(open_mpi, {{"RANK", "1"}, {"WORLD_SIZE", "2"}})).empty());
  CHECK(describe_variables(with(torchrun, {{"PMIX_RANK", "9"}})).empty());
  CHECK(describe_variables(with(torchrun, {{"PMI_RANK", "9"}, {"PMI_SIZE", "12"}})).empty());
  CHECK(describe_variables(with(torchrun, {{"PMI_RANK", "9"}, {"MPI_LOCALRANKID", "7"}})).size() == 1);
}

TEST_CASE("launcher variables are searched in the order torchrun, Open MPI, PMI, PMIx, MVAPICH, Slurm") {
  const std::vector<std::pair<Source, std::vector<std::string>>> order{
      {Source::torchrun, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}},
      {Source::open_mpi,
       {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}},
      {Source::pmi, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}},
      {Source::pmix, {"PMIX_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"}},
      {Source::mvapich,
       {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"}},
      {Source::slurm, {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE"}}};
  Variables all{{"SLURM_STEP_ID", "0"}};
  for (const auto& [source, names] : order) {
    for (size_t i = 0; i < 4; ++i) all[names[i]] = i % 2 == 0 ? "1" : "2";
  }
  for (const auto& [source, names] : order) {
    CHECK(env::read_process_env(all).source == source);
    for (const auto& name : names) all.erase(name);
  }
}

TEST_CASE("MASTER_ADDR and MASTER_PORT are read for every launcher") {
  const ProcessEnv process = env::read_process_env(with(open_mpi, {{"MASTER_ADDR", "::1"}, {"MASTER_PORT", "0"}}));
  CHECK(process.master_addr == "::1");
  CHECK(process.master_port == 0);
  CHECK(env::read_process_env(with(slurm, {{"MASTER_ADDR", "head"}})).master_addr == "head");
  CHECK(env::read_process_env(with(slurm, {{"MASTER_PORT", "999"}})).master_port == 999);
}

TEST_CASE("torchrun's restart count and agent store are read") {
  const ProcessEnv process = env::read_process_env(
      with(torchrun, {{"TORCHELASTIC_RESTART_COUNT", "2"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}}));
  CHECK(process.restart_count == 2);
  CHECK(process.agent_store);
  CHECK_FALSE(env::read_process_env(with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).agent_store);
}

TEST_CASE("incomplete variables are refused with the present and missing ones and the remedy") {
  CHECK(refusal({{"WORLD_SIZE", "2"}}) ==
        "environment: WORLD_SIZE=2 from torchrun without RANK, LOCAL_RANK and LOCAL_WORLD_SIZE; set the missing "
        "variables, or unset all of them to run as one process");
  CHECK(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}}) ==
        "environment: RANK=0, WORLD_SIZE=2 and LOCAL_RANK=0 from torchrun without LOCAL_WORLD_SIZE; set the missing "
        "variables, or unset all of them to run as one process");
  CHECK(refusal({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}) ==
        "environment: OMPI_COMM_WORLD_RANK=1 and OMPI_COMM_WORLD_SIZE=2 from Open MPI without "
        "OMPI_COMM_WORLD_LOCAL_RANK and OMPI_COMM_WORLD_LOCAL_SIZE; set the missing variables, or unset all of them to "
        "run as one process");
  CHECK(refusal({{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}}) ==
        "environment: SLURM_PROCID=1 from Slurm without SLURM_STEP_NUM_TASKS, SLURM_LOCALID and "
        "SLURM_STEP_TASKS_PER_NODE; set the missing variables, or unset all of them to run as one process");
  CHECK(refusal({{"PMIX_RANK", "1"}}) ==
        "environment: PMIX_RANK=1 is set, but PMIx has no variable for the number of processes; start with mpirun, "
        "srun, torchrun or accelerate_launch, or set RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE");
}

TEST_CASE("text instead of a number is refused with the text") {
  CHECK(refusal(with(torchrun, {{"WORLD_SIZE", "two"}})) == "environment: WORLD_SIZE is 'two', must be an integer");
  CHECK(refusal(with(torchrun, {{"RANK", "1 "}})) == "environment: RANK is '1 ', must be an integer");
  CHECK(refusal(with(torchrun, {{"LOCAL_RANK", "1.0"}})) == "environment: LOCAL_RANK is '1.0', must be an integer");
  CHECK(refusal(with(torchrun, {{"RANK", "99999999999999999999"}})) ==
        "environment: RANK is '99999999999999999999', must be an integer");
  CHECK(refusal(with(torchrun, {{"MASTER_PORT", "http"}})) ==
        "environment: MASTER_PORT is 'http', must be a port, 0 to 65535");
  CHECK(refusal(with(torchrun, {{"MASTER_PORT", "65536"}})) ==
        "environment: MASTER_PORT is '65536', must be a port, 0 to 65535");
  CHECK(refusal(with(torchrun, {{"TORCHELASTIC_RESTART_COUNT", "-1"}})) ==
        "environment: TORCHELASTIC_RESTART_COUNT is '-1', must be at least 0");
  CHECK(refusal(with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "maybe"}})) ==
        "environment: TORCHELASTIC_USE_AGENT_STORE is 'maybe', must be True or False");
  CHECK(refusal(with(slurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(x"}})) ==
        "environment: SLURM_STEP_TASKS_PER_NODE is '2(x', must be a count for every node, like 2(x3),1");
  CHECK(refusal(with(slurm, {{"SLURM_STEP_NODELIST", "node[1"}})) ==
        "environment: SLURM_STEP_NODELIST is 'node[1', must be a list of hosts, like node[01-04,7]");
}

TEST_CASE("a rank that is not below the world size is refused with both values") {
  CHECK(refusal(with(torchrun, {{"RANK", "4"}})) ==
        "environment: RANK is 4, must be at least 0 and below WORLD_SIZE, which is 4");
  CHECK(refusal(with(torchrun, {{"RANK", "-1"}})) ==
        "environment: RANK is -1, must be at least 0 and below WORLD_SIZE, which is 4");
  CHECK(refusal(with(torchrun, {{"WORLD_SIZE", "0"}})) == "environment: WORLD_SIZE is 0, must be at least 1");
  CHECK(refusal(with(torchrun, {{"LOCAL_RANK", "2"}})) ==
        "environment: LOCAL_RANK is 2, must be at least 0 and below LOCAL_WORLD_SIZE, which is 2");
  CHECK(refusal(with(open_mpi, {{"OMPI_COMM_WORLD_RANK", "2"}})) ==
        "environment: OMPI_COMM_WORLD_RANK is 2, must be at least 0 and below OMPI_COMM_WORLD_SIZE, which is 2");
}

TEST_CASE("contradicting variables of one launcher are refused with all four values") {
  CHECK(
      refusal({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}}) ==
      "environment: RANK=0, WORLD_SIZE=1, LOCAL_RANK=0 and LOCAL_WORLD_SIZE=2 contradict one another: no such process "
      "exists. Correct them, or unset all to run as one process");
  // two ranks of one machine with the same local rank would share a GPU
  CHECK(
      refusal({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}}) ==
      "environment: RANK=1, WORLD_SIZE=2, LOCAL_RANK=0 and LOCAL_WORLD_SIZE=2 contradict one another: no such process "
      "exists. Correct them, or unset all to run as one process");
  CHECK(refusal({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"TORCHELASTIC_USE_AGENT_STORE", "True"}}) ==
        "environment: TORCHELASTIC_USE_AGENT_STORE is True, but MASTER_ADDR is not set, so the address of the agent's "
        "store is incomplete");
  CHECK(refusal({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"TORCHELASTIC_USE_AGENT_STORE", "1"}, {"MASTER_ADDR", "a"}}) ==
        "environment: TORCHELASTIC_USE_AGENT_STORE is 1, but MASTER_PORT is not set, so the address of the agent's "
        "store is incomplete");
}

TEST_CASE("the shell of an sbatch or salloc job is one process, not rank 0 of all") {
  const Variables sbatch{{"SLURM_JOB_ID", "100"},
                         {"SLURM_PROCID", "0"},
                         {"SLURM_NTASKS", "8"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_TASKS_PER_NODE", "4(x2)"}};
  CHECK(env::read_process_env(sbatch) == ProcessEnv{});
  CHECK(env::read_process_env(with(sbatch, {{"SLURM_STEP_ID", "4294967290"}})) == ProcessEnv{});
  CHECK(env::read_process_env(with(sbatch, {{"SLURM_STEP_ID", "0"}})).world_size == 8);
}

TEST_CASE("the job id is ours, otherwise the launcher's, otherwise empty") {
  const auto id = [](const Variables& variables) { return env::read_process_env(variables).job_id; };
  CHECK(id(torchrun).empty());
  CHECK(id(with(torchrun, {{"TORCHELASTIC_RUN_ID", "run-7"}})) == "run-7");
  CHECK(id(with(open_mpi, {{"PMIX_NAMESPACE", "4242"}})) == "4242");
  CHECK(id(slurm) == "100.0");
  for (const auto& launcher : {torchrun, open_mpi, slurm}) {
    const auto all = with(launcher, {{"TORCHELASTIC_RUN_ID", "run-7"}, {"PMIX_NAMESPACE", "4242"}});
    CHECK(id(with(all, {{"ACCELERATE_JOB_ID", "mine"}})) == "mine");
  }
  // Ranks that are started by hand, each in its own step, belong to one job.
  CHECK(id(with(torchrun, slurm)).empty());
}

TEST_CASE("the number of tasks of the Slurm step counts, not that of the job") {
  const ProcessEnv process = env::read_process_env(
      with(slurm, {{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "1"}}));
  CHECK(process.world_size == 1);
}

TEST_CASE("written variables are read back unchanged, except the source") {
  for (int64_t nodes : {1, 2, 3}) {
    for (int64_t each : {1, 2, 4}) {
      for (int64_t rank = 0; rank < nodes * each; ++rank) {
        for (const bool agent : {false, true}) {
          ProcessEnv process{.source = Source::slurm,
                             .rank = rank,
                             .world_size = nodes * each,
                             .local_rank = rank % each,
                             .local_world_size = each,
                             .restart_count = rank,
                             .agent_store = agent};
          if (agent || nodes > 1) process.master_addr = "fe80::1";
          if (agent || nodes > 1) process.master_port = 29500 + rank;
          ProcessEnv expected = process;
          expected.source = Source::torchrun;
          CHECK(env::read_process_env(env::torchrun_variables(process)) == expected);
        }
      }
    }
  }
}

TEST_CASE("written variables are torchrun's names") {
  CHECK(
      env::torchrun_variables({.rank = 1, .world_size = 2, .local_rank = 1, .local_world_size = 2, .master_port = 7}) ==
      Variables{{"RANK", "1"},
                {"WORLD_SIZE", "2"},
                {"LOCAL_RANK", "1"},
                {"LOCAL_WORLD_SIZE", "2"},
                {"MASTER_PORT", "7"},
                {"TORCHELASTIC_RESTART_COUNT", "0"},
                {"TORCHELASTIC_USE_AGENT_STORE", "False"}});
}

TEST_CASE("this process's variables are copied, including values with =") {
  setenv("ACCELERATE_TEST_VARIABLE", "a=b=c", 1);
  CHECK(env::current_variables().at("ACCELERATE_TEST_VARIABLE") == "a=b=c");
  unsetenv("ACCELERATE_TEST_VARIABLE");
  CHECK(env::current_variables().count("ACCELERATE_TEST_VARIABLE") == 0);
}

TEST_CASE("every source has a name") {
  CHECK(env::launcher_name(Source::single) == "single");
  CHECK(env::launcher_name(Source::torchrun) == "torchrun");
  CHECK(env::launcher_name(Source::open_mpi) == "Open MPI");
  CHECK(env::launcher_name(Source::pmi) == "PMI");
  CHECK(env::launcher_name(Source::mvapich) == "MVAPICH");
  CHECK(env::launcher_name(Source::pmix) == "PMIx");
  CHECK(env::launcher_name(Source::slurm) == "Slurm");
}

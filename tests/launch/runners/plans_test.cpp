// SPDX-License-Identifier: Apache-2.0
// Plans of the runners.
#include <doctest/doctest.h>

#include <algorithm>

#include "launch/run/port.hpp"
#include "launch/runners/forwarded_environment.hpp"
#include "launch/runners/mpirun.hpp"
#include "launch/runners/srun.hpp"
#include "launch/runners/ssh.hpp"
#include "launch/runners/task.hpp"

using namespace accelerate::launch;
using accelerate::env::Variables;
using Hosts = std::vector<HostSlots>;
using Words = std::vector<std::string>;

TEST_CASE("variables are forwarded except those of this host, this login, another launcher and ours") {
  CHECK(forwarded_variables({{"PATH", "/bin"},
                             {"MY_DATA", "a b"},
                             {"ACCELERATE_MIXED_PRECISION", "bf16"},
                             {"HOME", "/root"},
                             {"HOSTNAME", "a"},
                             {"SSH_AUTH_SOCK", "x"},
                             {"SLURM_JOB_ID", "1"},
                             {"RANK", "1"},
                             {"OMPI_COMM_WORLD_RANK", "1"},
                             {"ACCELERATE_HOSTS", "a,b"},
                             {"ACCELERATE_CONFIG_FILE", "f"},
                             {"BASH_FUNC_f%%", "() {}"},
                             {"odd name", "1"}}) ==
        Variables{{"PATH", "/bin"}, {"MY_DATA", "a b"}, {"ACCELERATE_MIXED_PRECISION", "bf16"}});
}

TEST_CASE("options survive a round trip through arguments") {
  LaunchOptions options{.num_processes = 4, .main_process_ip = "gpu-a", .enable_cpu_affinity = true, .command = {"x"}};
  options.settings = {.cpu = false, .timeout = std::chrono::seconds(7)};
  auto words = arguments_of(options);
  CHECK(words ==
        Words{"--num_processes=4", "--main_process_ip=gpu-a", "--enable_cpu_affinity=1", "--cpu=0", "--timeout=7"});
  words.emplace_back("x");
  CHECK(parse_arguments(words).options == options);
  CHECK(arguments_of({.hang_timeout = std::chrono::milliseconds(1'234'567'500)}) == Words{"--hang_timeout=1234567.5"});
}

TEST_CASE("ssh: each host gets its machine rank and the same rendezvous address") {
  Hosts hosts{{"user@gpu-a", 2}, {"gpu-b", 1}};
  const auto host_options = options_of_hosts({.hosts = "...", .config_file = "c", .command = {"./train"}}, hosts, "id");
  REQUIRE(host_options.size() == 2);
  LaunchOptions expected{.num_machines = 2,
                         .machine_rank = 0,
                         .main_process_ip = "gpu-a",
                         .main_process_port = host_options[0].main_process_port,
                         .ranks_per_machine = "2,1",
                         .runner = "local",
                         .command = {"./train"}};
  CHECK(host_options[0] == expected);
  expected.machine_rank = 1;
  CHECK(host_options[1] == expected);
  CHECK(*host_options[0].main_process_port >= 20000);
  CHECK(*host_options[0].main_process_port < 30000);
}

TEST_CASE("ssh: a loopback rendezvous address is refused") {
  Hosts hosts{{"user@localhost", 2}, {"gpu-b", 1}};
  CHECK_THROWS_WITH_AS(
      static_cast<void>(options_of_hosts({}, hosts, "id")),
      "accelerate_launch: the rendezvous would be at the first host, localhost, which on gpu-b is gpu-b "
      "itself; use the first host's network name or --main_process_ip",
      accelerate::launch::LaunchError);
  CHECK_NOTHROW(options_of_hosts({.main_process_ip = "gpu-a"}, hosts, "id"));
  Hosts here{{"127.0.0.1", 2}, {"localhost", 1}};
  CHECK_NOTHROW(options_of_hosts({}, here, "id"));
}

TEST_CASE("ssh: a single host gets no rendezvous address unless one is given") {
  Hosts hosts{{"gpu-a", 2}};
  CHECK_FALSE(options_of_hosts({}, hosts, "id")[0].main_process_ip);
  CHECK(options_of_hosts({.main_process_ip = "gpu-b"}, hosts, "id")[0].main_process_ip == "gpu-b");
}

TEST_CASE("hosts without slots determine their number of ranks unless it is given") {
  Hosts hosts{{"a", 0}, {"b", 0}};
  CHECK_FALSE(options_of_hosts({}, hosts, "")[0].ranks_per_machine);
  CHECK(options_of_hosts({.num_processes = 4}, hosts, "")[0].ranks_per_machine == "2,2");
}

TEST_CASE("ssh: a list of ranks is passed unchanged, and is refused together with slots") {
  Hosts hosts{{"a", 0}, {"b", 0}};
  const auto host_options = options_of_hosts({.num_processes = 6, .ranks_per_machine = "4,2"}, hosts, "");
  CHECK(host_options[0].ranks_per_machine == "4,2");
  CHECK(host_options[0].num_processes == 6);
  Hosts slots{{"a", 0}, {"b", 8}};
  CHECK_THROWS_WITH_AS(options_of_hosts({.ranks_per_machine = "4,2"}, slots, ""),
                       "accelerate_launch: ranks_per_machine is 4,2, and b has 8 slots; use only one of them",
                       LaunchError);
}

TEST_CASE("no command line contains the job's id") {
  const Variables secret{{"ACCELERATE_JOB_ID", "old-secret"}, {"PATH", "/bin"}};
  for (const auto& plan :
       {plan_ssh({.command = {"x"}}, {{"a", 1}, {"b", 1}}, secret, "new-secret", "/bin/self", std::chrono::seconds(30)),
        plan_mpirun({.command = {"x"}}, {{"a", 1}, {"b", 1}}, secret, "new-secret", "/bin/self"),
        plan_srun({.command = {"x"}}, secret, "new-secret", "/bin/self")}) {
    for (const auto& worker : plan.workers) {
      CHECK(worker.environment.at("ACCELERATE_JOB_ID") == "new-secret");
      for (const auto& word : worker.command) CHECK(word.find("secret") == std::string::npos);
    }
  }
}

TEST_CASE("settings of sharded training reach the ranks of every runner") {
  LaunchOptions options{.command = {"x"}};
  options.fsdp = {.use_fsdp = true, .sharding_strategy = "FULL_SHARD", .reshard_after_forward = false};
  const Words words{"--use_fsdp=true", "--fsdp_sharding_strategy=FULL_SHARD", "--fsdp_reshard_after_forward=false"};
  CHECK(arguments_of(options) == words);
  Hosts hosts{{"a", 1}, {"b", 1}};
  for (const LaunchOptions& of_host : options_of_hosts(options, hosts, "id")) CHECK(of_host.fsdp == options.fsdp);
  for (const auto& plan :
       {plan_mpirun(options, {{"a", 1}, {"b", 1}}, {}, "id", ""), plan_srun(options, {}, "id", "")}) {
    const auto& environment = plan.workers.at(0).environment;
    CHECK(environment.at("ACCELERATE_USE_FSDP") == "true");
    CHECK(environment.at("FSDP_SHARDING_STRATEGY") == "FULL_SHARD");
    CHECK(environment.at("FSDP_RESHARD_AFTER_FORWARD") == "false");
  }
  const Words mpirun = plan_mpirun(options, {{"a", 1}, {"b", 1}}, {}, "id", "").workers.at(0).command;
  CHECK(std::count(mpirun.begin(), mpirun.end(), "FSDP_SHARDING_STRATEGY") == 1);
}

TEST_CASE("mpirun gets hosts with their ranks, and the names of exported variables") {
  LaunchOptions options{.num_processes = 3, .command = {"./train", "a b"}};
  options.settings.cpu = true;
  const auto plan =
      plan_mpirun(options, {{"gpu-a", 2}, {"user@gpu-b", 2}}, {{"HOME", "/root"}, {"MINE", "1"}}, "id", "");
  REQUIRE(plan.workers.size() == 1);
  const auto& mpirun = plan.workers[0];
  CHECK(mpirun.command == Words{"mpirun", "-n", "3", "-H", "gpu-a:2,gpu-b:1", "-x", "ACCELERATE_JOB_ID", "-x",
                                "ACCELERATE_USE_CPU", "-x", "MASTER_ADDR", "-x", "MASTER_PORT", "-x", "MINE", "./train",
                                "a b"});
  CHECK(mpirun.environment == Variables{{"HOME", "/root"},
                                        {"MINE", "1"},
                                        {"ACCELERATE_JOB_ID", "id"},
                                        {"ACCELERATE_USE_CPU", "1"},
                                        {"MASTER_ADDR", "gpu-a"},
                                        {"MASTER_PORT", mpirun.environment.at("MASTER_PORT")},
                                        {"OMPI_MCA_oob_tcp_keepalive_time", "10"},
                                        {"OMPI_MCA_oob_tcp_keepalive_intvl", "5"},
                                        {"OMPI_MCA_oob_tcp_keepalive_probes", "3"},
                                        {"OMPI_MCA_pml", "ob1"}});
}

TEST_CASE("local ranks of mpirun get no rank variables of another launcher and no overridden settings") {
  LaunchOptions options{.num_processes = 2, .command = {"x"}};
  options.settings.device = "cuda";
  const Variables inherited{{"RANK", "0"},
                            {"WORLD_SIZE", "1"},
                            {"LOCAL_RANK", "0"},
                            {"LOCAL_WORLD_SIZE", "1"},
                            {"HOME", "/root"},
                            {"ACCELERATE_USE_CPU", "1"},
                            {"ACCELERATE_HOSTS", "a,b"},
                            {"GROUP_RANK", "0"},
                            {"MASTER_ADDR", "a"},
                            {"MASTER_PORT", "1"},
                            {"ROLE_NAME", "x"},
                            {"TORCHELASTIC_RESTART_COUNT", "3"},
                            {"TORCHELASTIC_RUN_ID", "y"}};
  CHECK(plan_mpirun(options, {}, inherited, "id", "").workers[0].environment ==
        Variables{{"HOME", "/root"},
                  {"ACCELERATE_JOB_ID", "id"},
                  {"ACCELERATE_TORCH_DEVICE", "cuda"},
                  {"OMPI_MCA_pml", "ob1"}});
}

TEST_CASE("on mpirun's hosts each attempt has its own port unless one is given") {
  const auto port = [](const LaunchOptions& options, const std::string& job_id) {
    return plan_mpirun(options, {{"a", 1}, {"b", 1}}, {}, job_id, "").workers[0].environment.at("MASTER_PORT");
  };
  for (const auto& options : {LaunchOptions{.command = {"x"}}, {.main_process_port = 0, .command = {"x"}}}) {
    CHECK(port(options, "first") == std::to_string(port_of_job("first")));
    CHECK(port(options, "first") != port(options, "second"));
  }
  CHECK(port({.main_process_port = 4000, .command = {"x"}}, "first") == "4000");
  CHECK(port_of_job("first") >= 20000);
  CHECK(port_of_job("first") < 30000);
}

TEST_CASE("mpirun on this machine has no hosts; an IPv6 address is refused") {
  CHECK(plan_mpirun({.num_processes = 2, .command = {"x"}}, {}, {}, "id", "").workers[0].command ==
        Words{"mpirun", "-n", "2", "--oversubscribe", "-x", "ACCELERATE_JOB_ID", "x"});
  CHECK_THROWS_WITH_AS(
      plan_mpirun({.command = {"x"}}, {{"fd77::1", 1}}, {}, "id", ""),
      "accelerate_launch: fd77::1 is an IPv6 address, which mpirun accepts only by name; use the host's name",
      LaunchError);
  LaunchOptions gloo{.num_processes = 2, .command = {"x"}};
  gloo.settings.backend = "gloo";
  CHECK_THROWS_WITH_AS(
      plan_mpirun(gloo, {}, {}, "id", ""),
      "accelerate_launch: --runner mpirun without hosts is for --backend mpi, not gloo; give --hosts, or "
      "--runner local",
      LaunchError);
}

TEST_CASE("a log line states the number of mpirun's ranks if neither num_processes nor slots do") {
  CHECK(mpirun_choice_text({}, {}) == "1 rank; --num_processes N starts more");
  CHECK(mpirun_choice_text({}, {{"a", 0}, {"b", 0}}) ==
        "2 ranks, one per host; the hosts' slots (gpu-a:4) or --num_processes N choose otherwise");
  CHECK(mpirun_choice_text({}, {{"a", 0}}) ==
        "1 rank, one per host; the hosts' slots (gpu-a:4) or --num_processes N choose otherwise");
  CHECK_FALSE(mpirun_choice_text({}, {{"a", 2}, {"b", 2}}));
  CHECK_FALSE(mpirun_choice_text({.num_processes = 2}, {{"a", 0}, {"b", 0}}));
}

TEST_CASE("srun starts as many tasks as requested, else as many as the allocation has") {
  const Variables allocation{{"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NUM_NODES", "2"}, {"RANK", "7"}};
  CHECK(plan_srun({.command = {"./train", "-x"}}, allocation, "id", "").workers[0].command ==
        Words{"srun", "--kill-on-bad-exit=1", "--ntasks=2", "--", "./train", "-x"});
  auto per_node = allocation;
  per_node["SLURM_NTASKS_PER_NODE"] = "4";
  CHECK(plan_srun({.command = {"./train"}}, per_node, "id", "").workers[0].command[2] == "--ntasks=8");
  auto with_tasks = allocation;
  with_tasks["SLURM_NTASKS"] = "6";
  LaunchOptions options{.command = {"./train"}};
  CHECK(plan_srun(options, with_tasks, "id", "").workers[0].command[2] == "--ntasks=6");
  options.num_processes = 4;
  options.settings.backend = "mpi";
  CHECK(plan_srun(options, with_tasks, "id", "").workers[0].command ==
        Words{"srun", "--kill-on-bad-exit=1", "--ntasks=4", "--mpi=pmix", "--", "./train"});
  options.settings.backend = "gloo";
  CHECK(plan_srun(options, with_tasks, "id", "").workers[0].command[3] == "--mpi=none");
  CHECK(plan_srun(options, with_tasks, "id", "").workers[0].environment.at("ACCELERATE_BACKEND") == "gloo");
  CHECK_FALSE(plan_srun(options, with_tasks, "id", "").workers[0].environment.contains("RANK"));
}

TEST_CASE("a launcher around each rank adds options that mpirun and srun do not support") {
  CHECK(rank_wrapper_arguments({.quiet = true, .command = {"./train"}}, "") == Words{"./train"});
  CHECK(rank_wrapper_arguments({.resume_code = 75, .command = {"./train"}}, "/bin/self") ==
        Words{"/bin/self", "--task", "--resume_code=75", "--", "./train"});
  LaunchOptions options{.num_processes = 2,
                        .log_dir = "logs",
                        .tee = "3",
                        .label = true,
                        .max_restarts = 3,
                        .hang_timeout = std::chrono::seconds(30),
                        .command = {"./train", "--lr", "1"}};
  const Words around{"/bin/self",         "--task", "--log_dir=logs", "--tee=3", "--label=1",
                     "--hang_timeout=30", "--",     "./train",        "--lr",    "1"};
  CHECK(rank_wrapper_arguments(options, "/bin/self") == around);
  const auto srun = plan_srun(options, {{"SLURM_JOB_ID", "1"}}, "id", "/bin/self").workers[0].command;
  CHECK(Words(srun.end() - static_cast<std::ptrdiff_t>(around.size()), srun.end()) == around);
  const auto mpirun = plan_mpirun(options, {}, {}, "id", "/bin/self").workers[0].command;
  CHECK(Words(mpirun.end() - static_cast<std::ptrdiff_t>(around.size()), mpirun.end()) == around);
}

TEST_CASE("only the launchers around ranks get the version of the main launcher") {
  const std::string name = kLauncherVersionVariable;
  const Variables outer{{name, "0.1"}};
  const std::string ours = parse_arguments({"--version"}).print.value();
  const auto version_of = [&](const LaunchPlan& plan) {
    return "accelerate_launch " + plan.workers.at(0).environment.at(name) + "\n";
  };
  const auto mpirun = plan_mpirun({.command = {"x"}}, {{"a", 1}, {"b", 1}}, outer, "id", "/bin/self");
  CHECK(version_of(mpirun) == ours);
  const Words& words = mpirun.workers[0].command;
  CHECK(std::find(words.begin(), words.end(), name) != words.end());  // -x forwards it to the other hosts
  CHECK(version_of(plan_srun({.command = {"x"}}, outer, "id", "/bin/self")) == ours);
  CHECK_FALSE(plan_srun({.command = {"x"}}, outer, "id", "").workers[0].environment.contains(name));
  CHECK_FALSE(plan_task({.command = {"x"}}, outer).workers[0].environment.contains(name));
}

TEST_CASE("srun and mpirun do not bind ranks if the launcher around each does") {
  const LaunchOptions options{.num_processes = 2, .enable_cpu_affinity = true, .command = {"x"}};
  const auto srun = plan_srun(options, {{"SLURM_JOB_ID", "1"}}, "id", "/bin/self").workers[0].command;
  CHECK(srun == Words{"srun", "--kill-on-bad-exit=1", "--ntasks=2", "--cpu-bind=none", "--", "/bin/self", "--task",
                      "--enable_cpu_affinity=1", "--", "x"});
  const auto mpirun = plan_mpirun(options, {{"a", 2}}, {}, "id", "/bin/self").workers[0].command;
  CHECK(Words(mpirun.begin(), mpirun.begin() + 7) == Words{"mpirun", "-n", "2", "--bind-to", "none", "-H", "a:2"});
  CHECK(Words(mpirun.end() - 5, mpirun.end()) == Words{"/bin/self", "--task", "--enable_cpu_affinity=1", "--", "x"});

  const Machine machine{.usable_cpus = 4, .processors = {{0, 1, 2, 3}}};
  Variables second{
      {"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"},  {"SLURM_LOCALID", "1"}, {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
      {"SLURM_NODEID", "1"}, {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "1"}};
  CHECK(processors_of_task(second, machine) == std::vector<int>{2, 3});
  second["SLURM_CPU_BIND_TYPE"] = "none";
  CHECK(processors_of_task(second, machine) == std::vector<int>{2, 3});
  second["SLURM_CPU_BIND_TYPE"] = "mask_cpu:";
  CHECK(processors_of_task(second, machine).empty());
  CHECK(processors_of_task({{"OMPI_COMM_WORLD_RANK", "0"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}},
                           machine) == std::vector<int>{0, 1});
}

TEST_CASE("multi_gpu under srun and mpirun is refused for the CPU and for one rank") {
  LaunchOptions options{.num_processes = 2, .multi_gpu = true, .command = {"x"}};
  const Variables tasks{{"SLURM_STEP_NUM_TASKS", "2"}};
  CHECK_NOTHROW(plan_srun(options, {}, "id", ""));
  CHECK_NOTHROW(plan_task(options, tasks));
  CHECK_NOTHROW(plan_mpirun(options, {{"a", 2}}, {}, "id", ""));
  options.num_processes = 1;
  const std::string too_few = "accelerate_launch: --multi_gpu with num_processes 1, must be at least 2";
  CHECK_THROWS_WITH_AS(plan_srun(options, {}, "id", ""), too_few.c_str(), LaunchError);
  CHECK_THROWS_WITH_AS(plan_task(options, {}), too_few.c_str(), LaunchError);
  CHECK_THROWS_WITH_AS(plan_mpirun(options, {{"a", 2}}, {}, "id", ""), too_few.c_str(), LaunchError);
  options.num_processes = 2;
  options.settings.cpu = true;
  const std::string cpu = "accelerate_launch: --multi_gpu is given, but the CPU is requested too";
  CHECK_THROWS_WITH_AS(plan_srun(options, {}, "id", ""), cpu.c_str(), LaunchError);
  CHECK_THROWS_WITH_AS(plan_task(options, tasks), cpu.c_str(), LaunchError);
  CHECK_THROWS_WITH_AS(plan_mpirun(options, {{"a", 2}}, {}, "id", ""), cpu.c_str(), LaunchError);
}

TEST_CASE("backend auto is not passed to srun and mpirun as a name") {
  LaunchOptions options{.num_processes = 2, .command = {"x"}};
  options.settings.backend = "auto";
  CHECK(plan_srun(options, {}, "id", "").workers[0].command ==
        Words{"srun", "--kill-on-bad-exit=1", "--ntasks=2", "--", "x"});
  CHECK_NOTHROW(plan_mpirun(options, {}, {}, "id", ""));
}

TEST_CASE("ranks of srun and mpirun get the number of the attempt and the maximum number of restarts") {
  Variables again{{"SLURM_JOB_ID", "1"}};
  CHECK_FALSE(accelerate::launch::import_start(again));
  accelerate::launch::export_start(again, {.restart_count = 2, .max_restarts = 5});
  for (const auto& plan :
       {plan_srun({.command = {"x"}}, again, "id", ""), plan_mpirun({.command = {"x"}}, {}, again, "id", "")}) {
    const auto& variables = plan.workers[0].environment;
    CHECK(variables.at("TORCHELASTIC_RESTART_COUNT") == "2");
    CHECK(variables.at("TORCHELASTIC_MAX_RESTARTS") == "5");
    CHECK_FALSE(accelerate::launch::import_start(variables));
  }
}

TEST_CASE("srun does not stop ranks that request a restart") {
  const Variables allocation{{"SLURM_JOB_ID", "1"}};
  CHECK(plan_srun({.resume_code = 75, .command = {"x"}}, allocation, "id", "").workers[0].command[1] ==
        "--kill-on-bad-exit=0");
}

TEST_CASE("a task of srun becomes its rank") {
  const Variables task{{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"RANK", "0"}};
  LaunchOptions options{.command = {"./train"}};
  options.settings.gradient_accumulation_steps = 2;
  const auto worker = plan_task(options, task).workers[0];
  CHECK(worker.rank == 3);
  CHECK(worker.command == Words{"./train"});
  CHECK(worker.environment == Variables{{"SLURM_PROCID", "3"},
                                        {"SLURM_STEP_NUM_TASKS", "4"},
                                        {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2"}});
  options.num_processes = 4;
  CHECK_NOTHROW(plan_task(options, task));
  options.max_restarts = 3;
  CHECK_THROWS_WITH_AS(plan_task(options, task),
                       "accelerate_launch: --max_restarts 3, but srun started 4 tasks, each of which is a rank; in the "
                       "batch script, without srun, accelerate_launch starts all of them again",
                       LaunchError);
  options.num_processes = 2;
  CHECK_THROWS_WITH_AS(
      plan_task(options, task),
      "accelerate_launch: num_processes is 2, but srun started 4 tasks, each of which is a rank; leave "
      "it out, let srun start one task per node, or use --runner local for a separate job in this task",
      LaunchError);
}

// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <sstream>

#include "accelerate/base/error.hpp"
#include "launch/commands/questions.hpp"
#include "tests/launch/commands/files.hpp"
#include "tests/launch/commands/program.hpp"
#include "tests/launch/terminal.hpp"

using namespace accelerate::launch;
using testing::read_file;
using testing::run_program;
using testing::TemporaryFolder;
using testing::write_file;
namespace fs = std::filesystem;

namespace {

// Runs the questions with the given answers; the screen text can be inspected.
ClusterConfig answered(const std::string& answers, const Machine& machine, std::string* screen = nullptr) {
  std::istringstream in(answers);
  std::ostringstream out;
  Questions questions(in, out);
  const ClusterConfig config = ask_for_config(questions, machine);
  if (screen != nullptr) *screen = out.str();
  return config;
}

std::string refusal_of(const std::string& text) {
  try {
    static_cast<void>(updated_yaml(text, "c.yaml"));
  } catch (const accelerate::Error& error) {
    CHECK(error.kind() == accelerate::ErrorKind::environment);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("empty answers select the defaults: one process on the CPU, or one per GPU") {
  CHECK(answered("\n\n", {.gpus = 0}) == ClusterConfig{.use_cpu = true});
  const auto gpus = answered("\n\n\n\n\n\n\n\n", {.gpus = 4});
  CHECK(gpus == ClusterConfig{.distributed_type = "MULTI_GPU", .num_processes = 4, .gpu_ids = "all"});
  CHECK(default_config({.gpus = 4}, "bf16") ==
        ClusterConfig{.distributed_type = "MULTI_GPU", .mixed_precision = "bf16", .num_processes = 4});
  CHECK(default_config({.gpus = 1}, "no") == ClusterConfig{});
  CHECK(default_config({.gpus = 0}, "no") == ClusterConfig{.use_cpu = true});
}

TEST_CASE("every answer is written to the file: two machines on CPUs, by mpirun") {
  std::string screen;
  const auto config = answered("1\n2\n1\n10.0.0.1\n4000\n8\nyes\n/etc/hosts\nyes\nno\n\nbf16\n", {.gpus = 0}, &screen);
  CHECK(config == ClusterConfig{.distributed_type = "MULTI_CPU",
                                .mixed_precision = "bf16",
                                .use_cpu = true,
                                .enable_cpu_affinity = true,
                                .num_processes = 8,
                                .num_machines = 2,
                                .machine_rank = 1,
                                .main_process_ip = "10.0.0.1",
                                .main_process_port = 4000,
                                .mpirun_hostfile = "/etc/hosts"});
  CHECK(
      screen.starts_with("Where will you train?\n"
                         "  0: in one process\n"
                         "  1: in several processes on CPUs\n"
                         "  2: in several processes with a GPU each\n"
                         "[0]: How many machines? [1]: Which of them is this one? [0]: "));
  CHECK(yaml_of(config) ==
        "compute_environment: LOCAL_MACHINE\n"
        "debug: false\n"
        "distributed_type: 'MULTI_CPU'\n"
        "enable_cpu_affinity: true\n"
        "machine_rank: 1\n"
        "main_process_ip: '10.0.0.1'\n"
        "main_process_port: 4000\n"
        "main_training_function: main\n"
        "mixed_precision: 'bf16'\n"
        "mpirun_config:\n"
        "  mpirun_hostfile: '/etc/hosts'\n"
        "num_machines: 2\n"
        "num_processes: 8\n"
        "rdzv_backend: static\n"
        "same_network: true\n"
        "use_cpu: true\n");
}

TEST_CASE("sharded training is written as Accelerate's FSDP, and the launcher reads it") {
  std::string screen;
  const auto config = answered("1\n1\n2\nno\nno\nSHARD_GRAD_OP\nbf16\n", {.gpus = 0}, &screen);
  CHECK(config.sharding_strategy == "SHARD_GRAD_OP");
  CHECK(screen.find("Shard the training? FULL_SHARD divides") != std::string::npos);
  const std::string yaml = yaml_of(config);
  CHECK(yaml.find("distributed_type: 'FSDP'\n") != std::string::npos);
  CHECK(yaml.find("fsdp_config:\n  fsdp_sharding_strategy: 'SHARD_GRAD_OP'\n  fsdp_version: 1\n") != std::string::npos);
  const TemporaryFolder at;
  write_file(at.path / "c.yaml", yaml);
  const auto ran =
      testing::launch({"--config_file", at / "c.yaml", "--backend", "gloo", "sh", "-c",
                       "[ $RANK = 1 ] || echo $ACCELERATE_USE_FSDP $FSDP_SHARDING_STRATEGY of $WORLD_SIZE"});
  CHECK(ran.code == 0);
  CHECK(ran.out == "true SHARD_GRAD_OP of 2\n");
}

TEST_CASE("an invalid answer repeats the question with the valid answers") {
  std::string screen;
  const auto config =
      answered("7\ncpu\n1\n0\nmany\n2\n3\n\n\n99999\n\n\nno thanks\nno\n\n\n\n2\n", {.gpus = 0}, &screen);
  CHECK(config.num_machines == 2);
  CHECK(screen.find("'7' is not one of them; enter a number from 0 to 2\n") != std::string::npos);
  CHECK(screen.find("'cpu' is not one of them; enter a number from 0 to 2\n") != std::string::npos);
  CHECK(screen.find("'0' is not an integer from 1 to 4096\n") != std::string::npos);
  CHECK(screen.find("'many' is not an integer from 1 to 4096\n") != std::string::npos);
  CHECK(screen.find("'3' is not an integer from 0 to 1\n") != std::string::npos);
  CHECK(screen.find("This one has no default\n") != std::string::npos);
  CHECK(screen.find("'no thanks' is neither yes nor no\n") != std::string::npos);
}

TEST_CASE("a file with two documents or duplicate keys is not updated") {
  CHECK(refusal_of("distributed_type: 'NO'\n---\nnum_processes: 2\n") ==
        "accelerate_config: c.yaml has 2 documents with --- between them, must have 1; put each into a separate file");
  CHECK(refusal_of("num_processes: 2\ndistributed_type: 'NO'\nnum_processes: 4\n") ==
        "accelerate_config: c.yaml line 3 has the key num_processes twice; remove one of them");
  CHECK(refusal_of("distributed_type: FSDP\nfsdp_config:\n  a: 1\n  a: 2\n") ==
        "accelerate_config: c.yaml line 4 has the key a twice; remove one of them");
  CHECK_FALSE(updated_yaml("---\ndistributed_type: 'NO'\n---\n", "c.yaml").empty());
  CHECK(refusal_of(", a: 1\n") == "accelerate_config: c.yaml line 1 is not YAML: no value begins with this");
}

TEST_CASE("update keeps an old file's values and adds current keys; fp16 and dynamo_backend are renamed") {
  const std::string updated = updated_yaml(
      "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nfp16: true\ndynamo_backend: 'NO'\n"
      "num_processes: 6\nfsdp_config: {}\ncommands: [a, 'b c']\nmain_process_ip: null\nuse_cpu: true\n",
      "c.yaml");
  CHECK(updated ==
        "commands:\n"
        "  - a\n"
        "  - 'b c'\n"
        "compute_environment: LOCAL_MACHINE\n"
        "debug: false\n"
        "distributed_type: MULTI_CPU\n"
        "enable_cpu_affinity: false\n"
        "fsdp_config:\n"
        "  {}\n"
        "machine_rank: 0\n"
        "main_process_ip: ~\n"
        "main_training_function: main\n"
        "mixed_precision: 'fp16'\n"
        "num_machines: 1\n"
        "num_processes: 6\n"
        "rdzv_backend: static\n"
        "same_network: true\n"
        "use_cpu: true\n");
  CHECK(updated_yaml(updated, "c.yaml") == updated);
  const std::string written = yaml_of({.distributed_type = "MULTI_GPU", .gpu_ids = "0,1"});
  CHECK(updated_yaml(written, "c.yaml") == written);
  CHECK(updated_yaml("distributed_type: MULTI_CPU", "c.yaml").find("num_processes: -1\n") != std::string::npos);
  CHECK(updated_yaml("distributed_type: 'NO'\ndynamo_backend: INDUCTOR", "c.yaml")
            .find("dynamo_config:\n  dynamo_backend: 'INDUCTOR'\n") != std::string::npos);
}

TEST_CASE("an unsupported file is refused by name") {
  CHECK(refusal_of("- a") == "accelerate_config: c.yaml must contain lines like 'num_processes: 2'");
  CHECK(refusal_of("") == "accelerate_config: c.yaml must contain lines like 'num_processes: 2'");
  CHECK(refusal_of("a: [").starts_with("accelerate_config: c.yaml line "));
  CHECK(refusal_of("num_processes: 2") ==
        "accelerate_config: c.yaml has no distributed_type; accelerate_config writes a file that has");
  CHECK(refusal_of("distributed_type: 'NO'\nprocs: 2\nnodes: 1") ==
        "accelerate_config: c.yaml has keys that Accelerate does not support (procs, nodes); remove them");
}

TEST_CASE("the default path is Accelerate's") {
  CHECK(default_config_path({{"HOME", "/h"}}) == "/h/.cache/huggingface/accelerate/default_config.yaml");
  CHECK(default_config_path({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/c"}}) ==
        "/c/huggingface/accelerate/default_config.yaml");
  CHECK(default_config_path({{"HF_HOME", "/f"}, {"XDG_CACHE_HOME", "/c"}}) == "/f/accelerate/default_config.yaml");
  CHECK(default_config_path({{"ACCELERATE_CONFIG_FILE", "/x.yaml"}, {"HF_HOME", "/f"}}) == "/x.yaml");
}

TEST_CASE("the program writes the file atomically, and replaces an existing one only after a yes") {
  const TemporaryFolder at;
  const accelerate::env::Variables home{{"HF_HOME", at / "hf"}, {"CUDA_VISIBLE_DEVICES", ""}};
  const auto written = run_program("accelerate_config", {"default"}, home);
  CHECK(written.code == 0);
  const std::string path = at / "hf/accelerate/default_config.yaml";
  CHECK(written.out == path + " is written. It is used by\n  accelerate_launch --config_file " + path +
                           " PROGRAM\nand by programs that find its name in ACCELERATE_CONFIG_FILE.\n");
  CHECK(read_file(path) == yaml_of({.use_cpu = true}));
  const auto again = run_program("accelerate_config", {"default"}, home);
  CHECK(again.code == 2);
  CHECK(again.err ==
        "accelerate_config: " + path +
            " exists already; 'accelerate_config' overwrites it after a question, 'update' keeps its values\n");
  const auto bf16 =
      run_program("accelerate_config", {"default", "--mixed-precision", "bf16", "--config_file", at / "b.yaml"});
  CHECK(bf16.code == 0);
  CHECK(read_file(at.path / "b.yaml").find("mixed_precision: 'bf16'\n") != std::string::npos);

  const auto is_still_valid =
      testing::Child({"sh", "-c", "yes no | head -1 | " TEST_BINARY_DIR "/bin/accelerate_config"}, home).wait();
  CHECK(is_still_valid.code == 0);
  CHECK(is_still_valid.out == path + " stays as it is.\n");
  CHECK(is_still_valid.err == path + " exists already. Overwrite it? [no]: ");
  const auto over =
      testing::Child({"sh", "-c", "printf 'yes\\n0\\nbf16\\n' | " TEST_BINARY_DIR "/bin/accelerate_config"}, home)
          .wait();
  CHECK(over.code == 0);
  CHECK(read_file(path) == yaml_of({.mixed_precision = "bf16", .use_cpu = true}));
  const auto silent = testing::Child({"sh", "-c",
                                      "exec " TEST_BINARY_DIR "/bin/accelerate_config --config_file " +
                                          (at / "n.yaml") + " < /dev/null"})
                          .wait();
  CHECK(silent.code == 2);
  CHECK(silent.err.ends_with(
      "accelerate_config: the input ended at 'Where will you train?'; 'accelerate_config default' needs no answers\n"));
  CHECK_FALSE(fs::exists(at.path / "n.yaml"));

  write_file(at.path / "old.yaml", "distributed_type: 'NO'\nfp16: false\n");
  CHECK(run_program("accelerate_config", {"update", "--config_file", at / "old.yaml"}).code == 0);
  CHECK(read_file(at.path / "old.yaml").find("mixed_precision: 'no'\n") != std::string::npos);
  CHECK(run_program("accelerate_config", {"default", "--config_file", "c.json"}).err ==
        "accelerate_config: c.json would be JSON; give the name of a .yaml file\n");
  CHECK(run_program("accelerate_config", {"default", "--mixed_precision", "fp4", "--config_file", at / "c.yaml"}).err ==
        "accelerate_config: --mixed_precision is 'fp4', must be no, bf16 or fp16\n");
  CHECK(run_program("accelerate_config", {"update", "--config_file", "/no/such.yaml"}).err ==
        "accelerate_config: /no/such.yaml cannot be opened: No such file or directory\n");
}

TEST_CASE("the offered host file is in the home folder, where accelerate_launch finds it") {
  const TemporaryFolder at;
  const accelerate::env::Variables home{{"HOME", at.path.string()}, {"CUDA_VISIBLE_DEVICES", ""}};
  write_file(at.path / "hostfile", "gpu-a slots=2\n");
  const std::string path = at / "c.yaml";
  const auto written = testing::Child({"sh", "-c",
                                       "printf '1\\n2\\n\\ngpu-a\\n\\n2\\nyes\\n\\n\\n\\n\\n\\n' | " TEST_BINARY_DIR
                                       "/bin/accelerate_config --config_file " +
                                           path},
                                      home)
                           .wait();
  CAPTURE(written.err);
  CHECK(written.code == 0);
  CHECK(read_file(path).find("  mpirun_hostfile: '" + (at / "hostfile") + "'\n") != std::string::npos);
  const auto script = testing::launch({"--config_file", path, "--dry_run", "true"}, home);
  CAPTURE(script.err);
  CHECK(script.code == 0);
  CHECK(script.out.find(" mpirun -n 2 -H gpu-a:2 ") != std::string::npos);
  const auto by_hand = testing::launch({"--hostfile", "~/hostfile", "--runner", "mpirun", "--dry_run", "true"}, home);
  CHECK(by_hand.out.find(" mpirun -n 2 -H gpu-a:2 ") != std::string::npos);
}

TEST_CASE("at a terminal each answer follows its question") {
  const TemporaryFolder at;
  testing::AtTerminal program({TEST_BINARY_DIR "/bin/accelerate_config", "--config_file", at / "c.yaml"},
                              {{"CUDA_VISIBLE_DEVICES", ""}});
  REQUIRE(program.see("2: in several processes with a GPU each\r\n[0]: "));
  program.type("0\n");
  REQUIRE(program.see("[0]: 0\r\nMixed precision?\r\n  0: no\r\n  1: bf16\r\n  2: fp16\r\n[0]: "));
  program.type("bf16\n");
  CHECK(program.see("[0]: bf16\r\n" + (at / "c.yaml") + " is written. It is used by\r\n"));
  static_cast<void>(program.read_all());
  CHECK(program.wait() == 0);
  CHECK(read_file(at.path / "c.yaml") == yaml_of({.mixed_precision = "bf16", .use_cpu = true}));
}

TEST_CASE("accelerate_launch uses the file that accelerate_config writes") {
  const TemporaryFolder at;
  write_file(at.path / "c.yaml", yaml_of({.distributed_type = "MULTI_CPU",
                                          .mixed_precision = "bf16",
                                          .use_cpu = true,
                                          .num_processes = 2,
                                          .gpu_ids = "all"}));
  const auto ran = testing::launch({"--config_file", at / "c.yaml", "--backend", "gloo", "sh", "-c",
                                    "sleep 0.$((RANK * 3)); echo $RANK of $WORLD_SIZE"});
  CHECK(ran.code == 0);
  CHECK(ran.err.empty());
  CHECK(ran.out == "0 of 2\n1 of 2\n");
}

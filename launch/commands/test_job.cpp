// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/test_job.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "accelerate/base/error.hpp"

namespace accelerate::launch {
namespace {

constexpr std::string_view tester = "accelerate_test";

// "--num-processes=4" is --num_processes.
bool is_option(std::string argument, std::string_view name) {
  argument = argument.substr(0, argument.find('='));
  std::replace(argument.begin(), argument.end(), '-', '_');
  return argument == "__" + std::string(name);
}

bool says_how_many(const Arguments& arguments) {
  constexpr std::array<std::string_view, 6> options{"num_processes",   "config_file", "hostfile",
                                                    "mpirun_hostfile", "hosts",       "device"};
  return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& argument) {
    return std::any_of(options.begin(), options.end(),
                       [&](std::string_view name) { return is_option(argument, name); });
  });
}

std::string own_folder() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) base::fail(ErrorKind::environment, {}, tester, "/proc/self/exe cannot be read: {}", error.message());
  return self.parent_path().string();
}

}  // namespace

std::vector<std::string> test_command(const Arguments& arguments, const Machine& machine, bool has_config_file,
                                      const std::string& folder) {
  std::vector<std::string> command{folder + "/accelerate_launch"};
  if (!has_config_file && machine.gpus == 0 && !says_how_many(arguments)) {
    command.insert(command.end(), {"--num_processes", "2"});
  }
  command.insert(command.end(), arguments.begin(), arguments.end());
  command.push_back(folder + "/accelerate_test_worker");
  return command;
}

Answer test_job(const Arguments& arguments) {
  CommandLine line(
      std::string(tester),
      "Says check by check whether a job works here: every collective, a training that equals the one on one "
      "rank.\nTakes accelerate_launch's options and starts the ranks as that would; a rank per GPU, without GPUs "
      "two on the CPU.\nExit code: 0, 1 where a check failed, else accelerate_launch's.\n",
      {"accelerate_test", "accelerate_test --num_processes 4 --backend gloo"});
  const bool asks = std::any_of(arguments.begin(), arguments.end(), [](const std::string& argument) {
    return argument == "--help" || argument == "-h" || argument == "--version";
  });
  if (asks) {
    line.app().allow_extras();
    if (auto answer = line.parse(arguments)) return *answer;
  }
  const auto variables = env::current_variables();
  const std::string folder = own_folder();
  auto command = test_command(arguments, this_machine(variables), variables.contains("ACCELERATE_CONFIG_FILE"), folder);
  std::vector<char*> words;
  for (std::string& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  execv(words[0], words.data());
  base::fail(ErrorKind::environment, {}, tester, "{} cannot be run: {}", command.front(), std::strerror(errno));
}

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/environment.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>

#include "accelerate/env/config_file.hpp"
#include "accelerate/env/parallelism_config.hpp"
#include "launch/commands/build_info.hpp"
#include "launch/commands/config_file.hpp"
#include "launch/commands/text.hpp"

namespace accelerate::launch {
namespace {

namespace fs = std::filesystem;

std::string contents_of(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Returns the value of the line "NAME<separator> value", as in "model name : AMD EPYC".
std::string value_after(const std::string& text, const std::string& name, char separator) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name)) continue;
    const auto begin = line.find_first_not_of(" \t\"", line.find(separator) + 1);
    if (begin == std::string::npos) return "";
    return line.substr(begin, line.find_last_not_of(" \t\"") + 1 - begin);
  }
  return "";
}

std::string value_or_unknown(const std::string& text) { return text.empty() ? "unknown" : text; }

std::string machine_memory(const fs::path& root) {
  std::istringstream kib(value_after(contents_of(root / "proc/meminfo"), "MemTotal", ':'));
  uint64_t total = 0;
  if (!(kib >> total)) return "unknown";
  std::string text = readable_bytes(total * 1024);
  struct statvfs shared {};
  if (statvfs((root / "dev/shm").c_str(), &shared) == 0) {
    text += fmt::format(", {} of it at most in /dev/shm", readable_bytes(shared.f_blocks * shared.f_frsize));
  }
  return text;
}

std::vector<std::string> gpus_of(const fs::path& root) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root / "proc/driver/nvidia/gpus", error)) {
    files.push_back(entry.path() / "information");
  }
  std::sort(files.begin(), files.end());
  std::vector<std::string> names;
  for (const fs::path& file : files) names.push_back(value_or_unknown(value_after(contents_of(file), "Model", ':')));
  return names;
}

std::string driver_of(const fs::path& root) {
  const std::string version = value_after(contents_of(root / "proc/driver/nvidia/version"), "NVRM version", ':');
  return version.empty() ? "no NVIDIA driver is loaded" : version;
}

std::string system_of(const fs::path& root) {
  utsname kernel{};
  uname(&kernel);
  return fmt::format("{}, Linux {} on {}",
                     value_or_unknown(value_after(contents_of(root / "etc/os-release"), "PRETTY_NAME", '=')),
                     kernel.release, kernel.machine);
}

std::string found_in_path(const std::string& program, const std::string& path) {
  std::istringstream folders(path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path file = fs::path(folder) / program;
    if (access(file.c_str(), X_OK) == 0) return file.string();
  }
  return "not found";
}

bool is_training_variable(const std::string& name) {
  constexpr std::array<std::string_view, 22> prefixes{
      "ACCELERATE_", "PARALLELISM_", "FSDP_",  "CUDA_",   "NCCL_",     "GLOO_",          "OMPI_",     "PMIX_",
      "PMI_",        "SLURM_",       "TORCH",  "OMP_",    "MKL_",      "MALLOC_",        "GLIBC_TUN", "MASTER_",
      "WORLD_SIZE",  "RANK",         "LOCAL_", "HF_HOME", "XDG_CACHE", "LD_LIBRARY_PATH"};
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

// True for a job id, with which any process could join the job, and for names that look like secrets.
bool is_secret(const std::string& name) {
  constexpr std::array<std::string_view, 5> parts{"JOB_ID", "TOKEN", "SECRET", "PASSWORD", "KEY"};
  return name.starts_with("SLURM_") ? false : std::any_of(parts.begin(), parts.end(), [&](std::string_view part) {
    return name.find(part) != std::string::npos;
  });
}

std::string text_of_facts(const Facts& facts) {
  std::string text;
  for (const auto& [name, value] : facts) text += fmt::format("- {}: {}\n", name, value);
  return text;
}

std::string config_in_words(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return fmt::format("- config file: none at {}\n", path.string());
  std::string text = fmt::format("- config file: {}\n", path.string());
  std::istringstream lines(contents_of(path));
  for (std::string line; std::getline(lines, line);) text += "    " + line + "\n";
  return text;
}

// An existing file at the default path may belong to a job without a mesh, so it need not exist.
env::Config config_at(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) ? env::read_config_file(path.string(), "--config_file") : env::Config{};
}

}  // namespace

std::string mesh_in_words(const env::Variables& variables, const env::Config& config) {
  const auto mesh = env::weigh_parallelism({}, variables, config).config;
  if (!mesh) {
    return "no mesh: all ranks are data parallel (ACCELERATE_USE_PARALLELISM_CONFIG and parallelism_config are not "
           "set)\n";
  }
  return fmt::format("mesh of {} rank{}: {}\n{}", mesh->total_size(), mesh->total_size() == 1 ? "" : "s", mesh->text(),
                     mesh->ranks_text());
}

Facts facts_of_machine(const fs::path& root, const env::Variables& variables) {
  const Machine machine = this_machine(variables);
  const std::string processor = value_after(contents_of(root / "proc/cpuinfo"), "model name", ':');
  Facts facts{{"system", system_of(root)},
              {"processors", fmt::format("{}, {} usable", value_or_unknown(processor), machine.usable_cpus)},
              {"memory", machine_memory(root)},
              {"NVIDIA driver", driver_of(root)}};
  const auto gpus = gpus_of(root);
  facts.emplace_back("GPUs", fmt::format("{} in this machine, {} visible to a job", gpus.size(), machine.gpus));
  for (size_t i = 0; i < gpus.size(); ++i) facts.emplace_back(fmt::format("GPU {}", i), gpus[i]);
  return facts;
}

Facts facts_of_programs(const env::Variables& variables) {
  const auto path = variables.find("PATH");
  Facts facts;
  for (const char* program : {"accelerate_launch", "mpirun", "srun", "ssh", "torchrun", "nvidia-smi", "gdb"}) {
    facts.emplace_back(program, found_in_path(program, path == variables.end() ? "" : path->second));
  }
  return facts;
}

Facts facts_of_variables(const env::Variables& variables) {
  Facts facts;
  for (const auto& [name, value] : variables) {
    if (is_training_variable(name)) facts.emplace_back(name, is_secret(name) ? "(hidden)" : value);
  }
  return facts;
}

CommandResult environment(const Arguments& arguments) {
  const auto variables = env::current_variables();
  CommandLine line(
      "accelerate_env",
      "Prints information for a bug report: versions, system, processors, GPUs, installed programs, settings.\n",
      {"accelerate_env", "accelerate_env --config_file train.yaml > report.txt",
       "accelerate_env --mesh --config_file train.yaml"});
  std::string config = default_config_path(variables).string();
  line.app()
      .add_option(option_spellings("config_file"), config, fmt::format("Config file (default {})", config))
      ->type_name("FILE");
  bool is_mesh = false;
  line.app().add_flag(option_spellings("mesh"), is_mesh,
                      "Print the coordinates of each rank in the mesh of the settings, and nothing else");
  if (auto answer = line.parse(arguments)) return *answer;
  if (is_mesh) return {mesh_in_words(variables, config_at(config))};
  std::string text = text_of_facts(build_info());
  text += text_of_facts(facts_of_machine("/", variables));
  text += text_of_facts(facts_of_programs(variables));
  text += config_in_words(config);
  const Facts set = facts_of_variables(variables);
  text += set.empty() ? "- variables: none that affect training\n" : "- variables:\n";
  for (const auto& [name, value] : set) text += fmt::format("    {}={}\n", name, value);
  return {text};
}

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
#include "launch/plan/options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <memory>
#include <type_traits>

#include "accelerate/base/closest_match.hpp"
#include "accelerate/env/fsdp_table.hpp"
#include "accelerate/env/parallelism_table.hpp"
#include "accelerate/env/settings_table.hpp"
#include "launch/plan/option_types.hpp"
#include "launch/plan/options_table.hpp"
#include "launch/plan/unsupported_options.hpp"

namespace accelerate::launch {
namespace {

/// Returns "ACCELERATE_USE_CPU (--cpu), ...": the options with a variable of another name.
std::string other_variables() {
  std::string list;
  size_t count = 0;
  const auto look_at = [&](const auto& row) {
    std::string usual = fmt::format("ACCELERATE_{}", row.option.name);
    std::transform(usual.begin(), usual.end(), usual.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    if (row.variable == usual) return;
    list += fmt::format("{}{} (--{})",
                        list.empty()     ? ""
                        : count % 2 == 0 ? ",\n"
                                         : ", ",
                        row.variable, row.option.name);
    ++count;
  };
  for_each_option([&](std::string_view /*group*/, const auto& row) { look_at(row); });
  env::for_each_setting(look_at);
  return list;
}

/// Help on one page: each option once, with its first name.
class OnePage : public CLI::Formatter {
 public:
  OnePage() { column_width(38); }
  std::string make_option_name(const CLI::Option* option, bool /*is_positional*/) const override {
    return fmt::format("--{}", option->get_lnames().front());
  }
  std::string make_usage(const CLI::App* /*app*/, std::string /*name*/) const override {
    return "accelerate_launch [options] program [arguments]\n\n"
           "Starts the ranks of a job, here or on several machines, passes their output and signals on, and stops all\n"
           "of them when one fails. Exit code: the first failing rank's (128 + signal), 2 for a wrong option, 126 / "
           "127\n"
           "if the program cannot be run / does not exist.\n\n"
           "  accelerate_launch --cpu --num_processes 2 build/bin/mnist --epochs 3\n"
           "  accelerate_launch --hosts gpu-a:4,gpu-b:4 ./train            # over ssh\n";
  }
  std::string make_description(const CLI::App* /*app*/) const override { return ""; }
  std::string make_footer(const CLI::App* /*app*/) const override {
    return fmt::format(
        "\nOptions may be spelled --num-processes too. Arguments after the program belong to the program; -- is "
        "allowed before it.\nAll but those under Other, --use_deepspeed and --zero_stage have a variable too:\n"
        "ACCELERATE_NUM_PROCESSES and the like, with another name\n{},\n"
        "FSDP_VERSION (--fsdp_version), PARALLELISM_CONFIG_TP_SIZE (--parallelism_config_tp_size) and the like.\n"
        "All --fsdp_ and --parallelism_config_ options of Accelerate are accepted, or refused with a reason.\n",
        other_variables());
  }
};

/// In errors, integers are called whole numbers.
std::string expected(const env::Integer& type) {
  return type.highest == env::Integer::kNoLimit
             ? fmt::format("a whole number of at least {}", type.lowest)
             : fmt::format("a whole number from {} to {}", type.lowest, type.highest);
}
template <typename Type>
std::string expected(const Type& type) {
  return type.expected();
}

/// Returns "Machines (default 1)."
std::string help_of(const std::string& help, const std::string& default_value) {
  if (default_value.empty()) return help;
  return fmt::format("{} (default {}).", help.substr(0, help.size() - 1), default_value);
}

/// Declares an option. An invalid value is rejected with a list of the valid values.
template <typename Type>
CLI::Option* add(CLI::App& app, const env::CommandLineOption& option, const Type& type,
                 const std::string& default_value, std::optional<typename Type::Value>& target) {
  const auto take = [name = option.name, type, &target](const CLI::results_t& texts) {
    target = type.parse(texts.back());
    if (!target) fail(ErrorKind::usage, "--{} is '{}', must be {}", name, texts.back(), expected(type));
    return true;
  };
  auto* declared = app.add_option(fmt::format("--{}", option.name), take, help_of(option.help, default_value));
  declared->type_name(std::string(option.value_name));
  if (option.value_name.empty()) declared->expected(0);             // a flag: --cpu, or --cpu=no
  declared->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // as in torchrun and `accelerate launch`
  return declared;
}

/// Options of DeepSpeed that are translated into settings of sharded training.
struct DeepSpeedOptions {
  std::optional<bool> use_deepspeed{};
  std::optional<int64_t> zero_stage{};
};

void declare_sharding(CLI::App& app, LaunchOptions& o, DeepSpeedOptions& deepspeed) {
  const std::string group = "Sharded training";
  env::for_each_fsdp_setting([&](const auto& row) {
    const bool is_hidden = row.option.help.empty();
    add(app, row.option, row.type, row.default_text(), row.of(o.fsdp))->group(is_hidden ? "" : group);
  });
  add(app, {"use_deepspeed", "", "The same as --use_fsdp, with --zero_stage."}, env::Flag{}, "",
      deepspeed.use_deepspeed)
      ->group(group);
  add(app, {"zero_stage", "N", "fsdp_sharding_strategy by number: 0 NO_SHARD to 3 FULL_SHARD."}, env::kZeroStage,
      fmt::to_string(env::kDefaultZeroStage), deepspeed.zero_stage)
      ->group(group);
}

void declare_mesh(CLI::App& app, LaunchOptions& o) {
  const std::string group = "Mesh";
  const auto use = env::use_parallelism_row();
  add(app, use.option, use.type, use.default_text(), use.of(o))->group(group);
  env::for_each_parallelism_setting([&](const auto& row) {
    const bool is_hidden = row.option.help.empty();
    add(app, row.option, row.type, row.default_text(), row.of(o.parallelism))->group(is_hidden ? "" : group);
  });
}

void translate(const DeepSpeedOptions& deepspeed, LaunchOptions& o) {
  if (deepspeed.use_deepspeed && o.fsdp.use_fsdp) {
    fail(ErrorKind::usage, "--use_deepspeed and --use_fsdp are given, must be one of them; both shard the training");
  }
  if (deepspeed.zero_stage && o.fsdp.sharding_strategy) {
    fail(ErrorKind::usage, "--zero_stage {} and --fsdp_sharding_strategy {} are given, must be one of them",
         *deepspeed.zero_stage, *o.fsdp.sharding_strategy);
  }
  if (deepspeed.use_deepspeed) o.fsdp.use_fsdp = deepspeed.use_deepspeed;
  o.use_deepspeed = deepspeed.use_deepspeed.value_or(false);
  if (deepspeed.zero_stage) o.fsdp.sharding_strategy = env::strategy_of_zero_stage(*deepspeed.zero_stage);
}

void declare(CLI::App& app, LaunchOptions& o, DeepSpeedOptions& deepspeed, bool& help, bool& version) {
  for_each_option([&](std::string_view group, const auto& row) {
    add(app, row.option, row.type, row.default_text(), row.of(o))->group(std::string(group));
  });
  env::for_each_setting([&](const auto& row) {
    add(app, row.option, row.type, row.default_text(), row.of(o.settings))->group("Settings of the ranks");
  });
  declare_sharding(app, o, deepspeed);
  declare_mesh(app, o);
  const std::string rest = "Other";
  add(app, {"config_file", "FILE", "YAML, as `accelerate config` writes it."}, Text{"a file's name"},
      "ACCELERATE_CONFIG_FILE", o.config_file)
      ->group(rest);
  app.add_flag("--dry_run", o.dry_run, "Print what would be started, in a form that a shell can run.")->group(rest);
  app.add_flag("-h,--help", help, "Print this page and exit.")->group(rest);
  app.add_flag("--version", version, "Print the version and exit.")->group(rest);
}

/// Short names of Accelerate: -q, -t 3.
std::string_view long_name(std::string_view word) { return word == "-q" ? "--quiet" : word == "-t" ? "--tee" : word; }

/// Converts "--num-processes=4" to "--num_processes=4", for words before the program's name.
std::vector<std::string> with_underscores(const CLI::App& app, std::vector<std::string> arguments) {
  for (size_t i = 0; i < arguments.size() && arguments[i].starts_with('-') && arguments[i] != "--"; ++i) {
    auto& word = arguments[i];
    word = long_name(word);
    const auto equals = word.find('=');
    const auto name_end = word.begin() + static_cast<std::ptrdiff_t>(std::min(equals, word.size()));
    if (word.starts_with("--")) std::replace(word.begin() + 2, name_end, '-', '_');
    const auto* option = app.get_option_no_throw(std::string(word.begin(), name_end));
    if (option == nullptr) break;  // parse_arguments() refuses it later
    if (equals == std::string::npos && option->get_expected_min() > 0) ++i;
  }
  return arguments;
}

[[noreturn]] void refuse_option(const CLI::App& app, const std::string& word) {
  const std::string given = word.substr(0, word.find('='));
  std::string name = given.substr(std::min(given.find_first_not_of('-'), given.size()));
  std::replace(name.begin(), name.end(), '-', '_');
  if (const auto reason = unsupported_reason(name)) {
    fail(ErrorKind::usage, "{} of Hugging Face Accelerate is not an option here: {}", given, *reason);
  }
  std::vector<std::string> known;
  for (const auto* option : app.get_options()) known.push_back(option->get_lnames().front());
  const auto meant = base::closest_match(name, known);
  fail(ErrorKind::usage, "{} is not an option; {}see accelerate_launch --help", given,
       meant ? fmt::format("did you mean --{}? ", *meant) : "");
}

void check_device_of_backend(const LaunchOptions& o) {
  const auto& device = o.settings.device;
  const bool cpu_by_name = device && env::parse_device(*device)->is_cpu();
  if (!needs_gpus(o) || !(on_cpu(o) || cpu_by_name)) return;
  fail(ErrorKind::usage, "--backend {} needs GPUs, but {} is given; use {}", *o.settings.backend,
       on_cpu(o) ? "--cpu" : "--device cpu", env::backend_choice("cpu"));
}

}  // namespace

const LaunchOptions& default_options() {
  static const LaunchOptions defaults = [] {
    LaunchOptions all;
    for_each_option([&](std::string_view /*group*/, const auto& row) {
      if constexpr (std::remove_cvref_t<decltype(row)>::has_default) row.of(all) = row.default_value;
    });
    return all;
  }();
  return defaults;
}

bool on_cpu(const LaunchOptions& options) { return options.settings.cpu.value_or(false); }

std::optional<std::string> named_backend(const LaunchOptions& options) {
  const auto& backend = options.settings.backend;
  return backend == env::kAnyBackend ? std::nullopt : backend;
}

bool needs_gpus(const LaunchOptions& options) {
  const auto backend = named_backend(options);
  return backend && !env::is_backend(*backend, "cpu");
}

std::optional<std::vector<int64_t>> parse_ranks(std::string_view list) {
  std::vector<int64_t> ranks;
  while (true) {
    const auto comma = list.find(',');
    const auto count = env::Integer{1, kMaxProcesses}.parse(list.substr(0, comma));
    if (!count) return std::nullopt;
    ranks.push_back(*count);
    if (comma == list.npos) return ranks;
    list.remove_prefix(comma + 1);
  }
}

Parsed parse_arguments(const std::vector<std::string>& arguments) {
  Parsed parsed;
  LaunchOptions& options = parsed.options;
  bool help = false;
  bool version = false;
  CLI::App app;
  app.set_help_flag();
  app.prefix_command();
  app.formatter(std::make_shared<OnePage>());
  DeepSpeedOptions deepspeed;
  declare(app, options, deepspeed, help, version);
  try {
    auto words = with_underscores(app, arguments);
    std::reverse(words.begin(), words.end());  // CLI11 reads from the back
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    fail(ErrorKind::usage, "{}; see accelerate_launch --help", error.what());
  }
  if (help) parsed.print = app.help();
  if (version) parsed.print = "accelerate_launch " ACCELERATE_VERSION "\n";
  if (parsed.print) return parsed;

  options.command = app.remaining();
  if (!options.command.empty() && options.command.front() == "--") {
    options.command.erase(options.command.begin());
  } else if (!options.command.empty() && options.command.front().starts_with('-')) {
    refuse_option(app, options.command.front());
  }
  check_device_of_backend(options);
  translate(deepspeed, options);
  if (options.command.empty()) {
    fail(ErrorKind::usage, "no program given; usage: accelerate_launch [options] program [arguments]");
  }
  return parsed;
}

}  // namespace accelerate::launch

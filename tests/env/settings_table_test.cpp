// SPDX-License-Identifier: Apache-2.0
// Tests every row of the table with every source of its setting.
#include "accelerate/env/settings_table.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "accelerate/env/settings.hpp"
#include "launch/plan/plan.hpp"
#include "launch/plan/resolve.hpp"
#include "tests/env/refusal.hpp"

namespace env = accelerate::env;
namespace launch = accelerate::launch;
using accelerate::ErrorKind;
using env::GivenSettings;
using env::Settings;
using env::Variables;
using testing::refusal;

namespace {

// A text of each type that is not a default of a setting.
std::string sample(const env::Flag& /*type*/) { return "true"; }
std::string sample(const env::Integer& type) { return std::to_string(type.lowest + 2); }
std::string sample(const env::Seconds& /*type*/) { return "7"; }
template <typename Enum, size_t count>
std::string sample(const env::Choice<Enum, count>& type) {
  return std::string(type.names.back().second);
}
std::string sample(const env::Word& type) { return type.known("gloo") ? "gloo" : "cuda:1"; }

/// Settings of a rank if the launcher received this option.
Settings through_the_launcher(const std::string& option) {
  const auto options = launch::parse_arguments({option, "./train"}).options;
  const auto resolved = launch::resolve_options(options, {}, {}).options;
  const Variables of_rank = launch::plan(resolved, {.gpus = 2}, {}, {}).workers.at(0).environment;
  return env::weigh({}, of_rank, {}).settings;
}

}  // namespace

TEST_CASE("the table contains config key, variable and option of every setting") {
  std::string text;
  env::for_each_setting([&](const auto& row) {
    text += fmt::format("{} {} --{} {}\n", row.key, row.variable, row.option.name, row.option.value_name);
  });
  CHECK(text ==
        "gradient_accumulation_steps ACCELERATE_GRADIENT_ACCUMULATION_STEPS --gradient_accumulation_steps N\n"
        "mixed_precision ACCELERATE_MIXED_PRECISION --mixed_precision NAME\n"
        "cpu ACCELERATE_USE_CPU --cpu \n"
        "backend ACCELERATE_BACKEND --backend NAME\n"
        "timeout ACCELERATE_TIMEOUT --timeout SECONDS\n"
        "debug ACCELERATE_DEBUG_MODE --debug \n"
        "torch_device ACCELERATE_TORCH_DEVICE --device NAME\n"
        "threads_per_rank OMP_NUM_THREADS --num_cpu_threads_per_process N\n"
        "allow_shared_gpus ACCELERATE_ALLOW_SHARED_GPUS --allow_shared_gpus \n"
        "memory_format ACCELERATE_MEMORY_FORMAT --memory_format NAME\n"
        "float32_matmul_precision ACCELERATE_FLOAT32_MATMUL_PRECISION --float32_matmul_precision NAME\n"
        "cudnn_benchmark ACCELERATE_CUDNN_BENCHMARK --cudnn_benchmark \n");
}

TEST_CASE("every setting has the same value from code, variable, config file and option") {
  env::for_each_setting([](const auto& row) {
    const std::string name(row.name);
    const std::string text = sample(row.type);
    CAPTURE(name);
    GivenSettings in_code;
    row.of(in_code) = row.type.parse(text);
    const Settings expected = env::weigh(in_code, {}, {}).settings;
    CHECK(expected != Settings{});
    CHECK(env::weigh({}, {{std::string(row.variable), text}}, {}).settings == expected);
    CHECK(env::weigh({}, {}, {.path = "f", .values = {{std::string(row.key), text}}}).settings == expected);
    CHECK(through_the_launcher(fmt::format("--{}={}", row.option.name, text)) == expected);
    CHECK(row.type.parse(row.type.text(*row.of(in_code))) == row.of(in_code));
  });
}

TEST_CASE("every setting refuses an invalid text with its source and the expected values") {
  using Refusal = std::pair<ErrorKind, std::string>;
  env::for_each_setting([](const auto& row) {
    const std::string expected = row.type.expected();
    CHECK(refusal([&] {
            env::weigh({}, {{std::string(row.variable), "no-such"}}, {});
          }) == Refusal{ErrorKind::environment,
                        fmt::format("settings: {} is 'no-such', must be {}", row.variable, expected)});
    CHECK(refusal([&] {
            env::weigh({}, {}, {.path = "job.yaml", .values = {{std::string(row.key), "no-such"}}});
          }) == Refusal{ErrorKind::environment,
                        fmt::format("settings: {} in job.yaml is 'no-such', must be {}", row.key, expected)});
    const auto [kind, message] = refusal([&] {
      launch::parse_arguments({fmt::format("--{}=no-such", row.option.name), "x"});
    });
    CAPTURE(message);
    CHECK(kind == ErrorKind::usage);
    CHECK(message.starts_with(fmt::format("accelerate_launch: --{} is 'no-such', must be ", row.option.name)));
  });
}

TEST_CASE("every member has its own row") {
  const GivenSettings given;
  const auto& [a, b, c, d, e, f, g, h, i, j, k, l] = given;
  const std::set<const void*> members{&a, &b, &c, &d, &e, &f, &g, &h, &i, &j, &k, &l};
  std::set<const void*> rows;
  env::for_each_setting([&](const auto& row) { rows.insert(&row.of(given)); });
  CHECK(rows == members);
}

TEST_CASE("the reference lists every setting of the table") {
  std::ifstream file(TEST_SOURCE_DIR "/docs/reference/settings.md");
  std::stringstream text;
  text << file.rdbuf();
  const std::string page = text.str();
  env::for_each_setting([&](const auto& row) {
    const std::string line = fmt::format("\n| `{}` | `{}` | `--{}", row.key, row.variable, row.option.name);
    CAPTURE(line);
    CHECK(page.find(line) != std::string::npos);
  });
}

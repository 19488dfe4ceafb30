// SPDX-License-Identifier: Apache-2.0
// The help page of each program.
#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/launch/commands/program.hpp"

namespace {

size_t count_of(const std::string& text, const std::string& word) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += word.size()) ++found;
  return found;
}

}  // namespace

TEST_CASE("every program's help has a description, headings, defaults and two examples, and fits a terminal") {
  const std::string home = "/home/gpu";
  const std::string config = home + "/.cache/huggingface/accelerate/default_config.yaml";
  const std::vector<std::pair<std::string, std::vector<std::string>>> programs{
      {"accelerate_launch",
       {"(default one per visible NVIDIA GPU, else one).",
        "Number of machines, each with the same number of ranks (default 1).", "(default auto: the best available).",
        "(default ACCELERATE_CONFIG_FILE)."}},
      {"accelerate_config", {"(default " + config + ")"}},
      {"accelerate_env", {"(default " + config + ")"}},
      {"accelerate_test", {}},
      {"accelerate_checkpoint", {}},
      {"accelerate_estimate_memory", {"(default adam)"}},
      {"accelerate_merge_weights", {"which is otherwise an error."}},
      {"accelerate_report", {"(default report.html in DIR)."}}};
  for (const auto& [name, defaults] : programs) {
    CAPTURE(name);
    const auto ran = testing::run_program(
        name, {"--help"}, {{"HOME", home}, {"HF_HOME", ""}, {"XDG_CACHE_HOME", ""}, {"ACCELERATE_CONFIG_FILE", ""}});
    for (const auto& each : defaults) {
      CAPTURE(each);
      CHECK(ran.out.find(each) != std::string::npos);
    }
    CHECK(ran.code == 0);
    CHECK(ran.err == "");
    CHECK(count_of(ran.out, "\n  " + name) >= 2);  // the examples
    CHECK(ran.out.find(":\n  --") != std::string::npos);
    CHECK(ran.out.find("  --help ") != std::string::npos);
    CHECK(ran.out.find("  --version ") != std::string::npos);
    std::istringstream lines(ran.out);
    for (std::string line; std::getline(lines, line);) {
      CAPTURE(line);
      CHECK(line.size() <= 120);
    }
  }
}

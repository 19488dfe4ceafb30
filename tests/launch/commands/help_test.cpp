// SPDX-License-Identifier: Apache-2.0
// The first page that a newcomer reads of each program.
#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>
#include <string>

#include "tests/launch/commands/program.hpp"

namespace {

size_t count_of(const std::string& text, const std::string& word) {
  size_t found = 0;
  for (size_t at = 0; (at = text.find(word, at)) != std::string::npos; at += word.size()) ++found;
  return found;
}

}  // namespace

TEST_CASE("every program's help says what it does, has headings, defaults and two examples, and fits a terminal") {
  for (const std::string name :
       {"accelerate_launch", "accelerate_config", "accelerate_env", "accelerate_test", "accelerate_checkpoint",
        "accelerate_estimate_memory", "accelerate_merge_weights", "accelerate_report"}) {
    CAPTURE(name);
    const auto ran = testing::run_program(name, {"--help"});
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

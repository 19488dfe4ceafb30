// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "accelerate/selftest/checks.hpp"
#include "tests/accelerator/ranks.hpp"

using selftest::Check;

namespace {

// Rank 0's report about the checks, and the number of failures.
std::pair<std::vector<std::string>, int64_t> run_on(int64_t ranks, const std::vector<Check>& checks) {
  std::vector<std::string> lines;
  int64_t failed = -1;
  on_ranks(ranks,
           [&](accelerate::Accelerator& accelerator) {
             const int64_t count =
                 selftest::run_checks(accelerator, checks, [&](const std::string& line) { lines.push_back(line); });
             if (accelerator.is_main_process()) failed = count;
           },
           {.cpu = true});
  return {lines, failed};
}

}  // namespace

TEST_CASE("a check that fails on one rank is reported with rank and finding, and the other checks continue") {
  const std::vector<Check> checks{
      {"fine", [](accelerate::Accelerator&) {}},
      {"broken",
       [](accelerate::Accelerator& accelerator) {
         const auto found = torch::full({2}, accelerator.process_index() == 2 ? 7 : 1, torch::kLong);
         selftest::expect_equal(found, torch::ones({2}, torch::kLong), "the sum");
       }},
      {"after",
       [](accelerate::Accelerator& accelerator) { selftest::expect(accelerator.num_processes() == 3, "three"); }}};
  const auto [lines, failed] = run_on(3, checks);
  CHECK(failed == 1);
  CHECK(lines ==
        std::vector<std::string>{"passed  fine",
                                 "FAILED  broken: rank 2: the sum is long int [2] {7, 7}, expected long int [2] {1, 1}",
                                 "passed  after"});
}

TEST_CASE("every check of accelerate_test prints a line and succeeds on one rank and on four") {
  for (const int64_t ranks : {1, 4}) {
    const auto [lines, failed] = run_on(ranks, selftest::collectives());
    CHECK(failed == 0);
    CHECK(lines.size() == selftest::collectives().size());
  }
}

TEST_CASE("a check detects a wrong result of a collective") {
  // Results of a broken collective, which the check's own comparison must detect.
  CHECK_THROWS_WITH(selftest::expect_equal(torch::zeros({2}), torch::zeros({3}), "x"),
                    "x is float [2] {0, 0}, expected float [3] {0, 0, 0}");
  CHECK_THROWS_WITH(selftest::expect_equal(torch::zeros({2}), torch::zeros({2}, torch::kDouble), "x"),
                    "x is float [2] {0, 0}, expected double [2] {0, 0}");
  CHECK_THROWS_WITH(selftest::expect_equal(torch::zeros({20}), torch::ones({20}), "x"),
                    "x is float [20], expected float [20]");
  CHECK_NOTHROW(selftest::expect_equal(torch::ones({2}), torch::ones({2}), "x"));
}

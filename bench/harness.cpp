// SPDX-License-Identifier: Apache-2.0
#include "bench/harness.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <utility>

namespace bench {
namespace {

using Clock = std::chrono::steady_clock;

/// Without a driver: seven rounds of each case, medians on stderr. The cases run one after another, because not all of
/// them fit into the memory of a GPU. All ranks run the same number of steps, independent of their clocks.
int by_hand(int64_t rank, const std::string& about, const std::vector<Case>& cases) {
  constexpr int64_t iterations = 20;
  if (rank == 0) {
    fmt::print(stderr, "{}; medians of 7 rounds of {} steps, alone; bench/run compares\n", about, iterations);
  }
  for (const Case& one : cases) {
    if (one.needs_driver) continue;
    std::vector<double> rounds;
    for (int round = 0; round < 8; ++round) {
      const double value = one.round(iterations);
      if (round > 0) rounds.push_back(value);
    }
    std::nth_element(rounds.begin(), rounds.begin() + 3, rounds.end());
    if (rank == 0) fmt::print(stderr, "  {:30} {:12.9f}\n", one.name, rounds[3]);
  }
  return 0;
}

std::string in_one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// Returns a number, or "error TEXT".
std::string answer(const std::vector<Case>& cases, const std::string& question) try {
  std::istringstream words(question);
  std::string name;
  int64_t iterations = 0;
  words >> name >> iterations;
  for (const Case& one : cases) {
    if (one.name == name) return fmt::format("{:.12g}", one.round(iterations));
  }
  return fmt::format("error there is no case '{}'", name);
} catch (const CaseError& error) {
  return fmt::format("error {}", in_one_line(error.what()));
}

}  // namespace

double seconds_per_step(int64_t iterations, const std::function<void()>& step, const std::function<void()>& finish) {
  for (int64_t i = 1; i < std::min<int64_t>(iterations, 3); ++i) step();
  if (finish) finish();
  const auto start = Clock::now();
  for (int64_t i = 0; i < iterations; ++i) step();
  if (finish) finish();
  return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(iterations);
}

Case timed(std::string name, const std::function<void()>& step, const std::function<void()>& finish) {
  return {std::move(name), [step, finish](int64_t iterations) { return seconds_per_step(iterations, step, finish); }};
}

Case counted(std::string name, const std::function<void()>& step, const std::function<int64_t()>& allocations) {
  return {std::move(name), [step, allocations](int64_t iterations) {
            step();
            step();
            const int64_t before = allocations();
            for (int64_t i = 0; i < iterations; ++i) step();
            return static_cast<double>(allocations() - before) / static_cast<double>(iterations);
          }};
}

int serve(int64_t rank, const std::string& about, const std::vector<Case>& cases) {
  const char* folder = std::getenv("ACCELERATE_BENCH_PIPES");
  if (folder == nullptr) return by_hand(rank, about, cases);
  std::ofstream out;
  if (rank == 0) {
    out.open(fmt::format("{}/out", folder));
    out << about << std::endl;
  }
  std::ifstream in(fmt::format("{}/{}.in", folder, rank));
  std::string question;
  while (std::getline(in, question)) {
    const auto value = answer(cases, question);
    if (rank == 0) out << value << std::endl;
  }
  return 0;
}

}  // namespace bench

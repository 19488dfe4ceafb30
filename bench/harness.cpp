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

/// Without a driver: seven rounds of every case in turn, medians on stderr. All ranks run the same number of steps,
/// independent of their clocks.
int by_hand(int64_t rank, const std::string& about, const std::vector<Case>& cases) {
  constexpr int64_t iterations = 20;
  std::vector<std::vector<double>> rounds(cases.size());
  for (int round = 0; round < 8; ++round) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const double value = cases[i].round(iterations);
      if (round > 0) rounds[i].push_back(value);
    }
  }
  if (rank != 0) return 0;
  fmt::print(stderr, "{}; medians of 7 rounds of {} steps, alone; bench/run compares\n", about, iterations);
  for (size_t i = 0; i < cases.size(); ++i) {
    std::nth_element(rounds[i].begin(), rounds[i].begin() + 3, rounds[i].end());
    fmt::print(stderr, "  {:30} {:12.9f}\n", cases[i].name, rounds[i][3]);
  }
  return 0;
}

double answer(const std::vector<Case>& cases, const std::string& question) {
  std::istringstream words(question);
  std::string name;
  int64_t iterations = 0;
  words >> name >> iterations;
  for (const Case& one : cases) {
    if (one.name == name) return one.round(iterations);
  }
  fmt::print(stderr, "bench: there is no case '{}'\n", name);
  return -1;
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
    const double value = answer(cases, question);
    if (rank == 0) out << fmt::format("{:.12g}", value) << std::endl;
  }
  return 0;
}

}  // namespace bench

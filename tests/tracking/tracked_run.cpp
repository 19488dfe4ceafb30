// SPDX-License-Identifier: Apache-2.0
// A run that logs to every tracker: tracked_run <folder> [forever]
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <string_view>

#include "accelerate/tracking/trackers.hpp"

using namespace accelerate::tracking;

namespace {

void log_step(Trackers& trackers, int64_t step) {
  trackers.log({{"loss", 1.0 / static_cast<double>(step + 1)}, {"lr", 0.5}}, step);
}

void log_all_kinds(Trackers& trackers) {
  for (int64_t step = 0; step < 1000; ++step) log_step(trackers, step);
  trackers.log({{"accuracy", Value::Group{{"train", 0.75}, {"test", 0.5}}}}, 1000);
  trackers.log({{"odd", std::numeric_limits<double>::infinity()}, {"\xff", 1}}, 1001);
  trackers.log({{"without", 1}}, std::nullopt);
  trackers.log_text("sample", "a **cat** \xc3(", 5);
  trackers.log_images("red and blue", {{.height = 1, .width = 2, .channels = 3, .pixels = {255, 0, 0, 0, 0, 255}}}, 6);
  trackers.log_images("greys", {{1, 1, 1, {7}}, {1, 1, 2, {9, 255}}}, 6);
  const std::vector<double> weights{-1.0, 0.5, 0.5, 2.0};
  trackers.log_histogram("weights", histogram_of(weights), 7);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  Trackers trackers({.log_with = {"all"}, .logging_dir = argv[1]}, {});
  trackers.start("digits", {{"lr", 0.5}, {"net", "basic: \"a\""}, {"fast", true}, {"layers", 2}});
  if (argc > 2 && std::string_view(argv[2]) == "forever") {
    for (int64_t step = 0;; ++step) {
      log_step(trackers, step);
      if (step % 100 == 99) {
        fmt::print("{} logged\n", step + 1);
        std::fflush(stdout);
      }
    }
  }
  log_all_kinds(trackers);
}

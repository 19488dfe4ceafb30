// SPDX-License-Identifier: Apache-2.0
#include "accelerate/launch_workers.hpp"

#include "accelerate/job/start.hpp"
#include "launch/workers.hpp"

namespace accelerate {

void launch_workers(const std::function<void(const std::string&)>& rank_main, int64_t num_processes,
                    const WorkerOptions& options) {
  launch::LaunchOptions given;
  given.settings.backend = options.backend;
  given.settings.cpu = options.cpu;
  given.settings.mixed_precision = options.mixed_precision;
  given.grace_time = options.grace_time;
  launch::run_workers(rank_main, num_processes, options.argument, std::move(given));
}

void launch_workers(const std::function<void()>& rank_main, int64_t num_processes, const WorkerOptions& options) {
  launch_workers([&](const std::string&) { rank_main(); }, num_processes, options);
}

void run_threads(const std::function<void()>& rank_main, int64_t num_processes) {
  job::simulate(num_processes, rank_main);
}

}  // namespace accelerate

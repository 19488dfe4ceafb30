// SPDX-License-Identifier: Apache-2.0
// Replaces launch_workers.cpp in a build without the launcher.
#include "accelerate/base/error.hpp"
#include "accelerate/job/start.hpp"
#include "accelerate/launch_workers.hpp"

namespace accelerate {

void launch_workers(const std::function<void(const std::string&)>& /*rank_main*/, int64_t /*num_processes*/,
                    const WorkerOptions& /*options*/) {
  base::fail(ErrorKind::environment, {}, "launch_workers",
             "this library was built without the launcher; build it with -DACCELERATE_BUILD_LAUNCHER=ON");
}

void launch_workers(const std::function<void()>& rank_main, int64_t num_processes, const WorkerOptions& options) {
  launch_workers([&](const std::string&) { rank_main(); }, num_processes, options);
}

void run_threads(const std::function<void()>& rank_main, int64_t num_processes) {
  job::simulate(num_processes, rank_main);
}

}  // namespace accelerate

// SPDX-License-Identifier: Apache-2.0
// Several ranks from a program's own main(), without accelerate_launch.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "accelerate/env/precision.hpp"

namespace accelerate {

struct WorkerOptions {
  /// As accelerate_launch's --backend: mpi, gloo or nccl. Unset: what is there.
  std::optional<std::string> backend{};
  /// Keep the ranks off the GPUs. Unset: a GPU each where there are some.
  std::optional<bool> cpu{};
  /// Unset: what their Accelerators say, else no.
  std::optional<env::Precision> mixed_precision{};
  /// Between SIGTERM and SIGKILL for the ranks that are left when one failed. Unset: 5 s.
  std::optional<std::chrono::milliseconds> grace_time{};
  /// What each rank's main gets: what this process found out and the ranks cannot.
  std::string argument{};
};

/// Runs rank_main as num_processes ranks of this machine, each a process, and returns when all have ended well. An
/// Accelerator made within is that rank's. May be called again and again, from one thread; num_processes is 1 to 4096.
///
/// A rank is this program started again with its arguments: it runs main() up to this call, passes earlier calls over,
/// runs rank_main and ends there. So main() does the same in every rank until then, what it prints before comes from
/// each, and what rank_main captures was made anew; only options.argument is handed over. This process may have
/// computed, and may have threads.
///
/// Throws Error when a rank failed: of its Error's kind with its number and text, "launch_workers: rank 1 of 2: ...";
/// (peer) for another exception, and for one that ended without a word, by a signal or exit; (usage) for options that
/// accelerate_launch would refuse, in a rank, and where main() does not lead a rank to this call.
void launch_workers(const std::function<void()>& rank_main, int64_t num_processes, const WorkerOptions& options = {});
/// rank_main   gets options.argument
void launch_workers(const std::function<void(const std::string& argument)>& rank_main, int64_t num_processes,
                    const WorkerOptions& options = {});

/// Runs rank_main on num_processes threads of this process, as simulate(): no process is started, everything is shared.
void run_threads(const std::function<void()>& rank_main, int64_t num_processes);

}  // namespace accelerate

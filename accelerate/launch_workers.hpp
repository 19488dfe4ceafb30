// SPDX-License-Identifier: Apache-2.0
// Starts several ranks from the program's own main(), without accelerate_launch.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "accelerate/env/precision.hpp"

namespace accelerate {

struct WorkerOptions {
  /// mpi, gloo or nccl, as accelerate_launch's --backend. If unset, an available backend is chosen.
  std::optional<std::string> backend{};
  /// If true, the ranks do not use GPUs. If unset, each rank uses a GPU if the machine has any.
  std::optional<bool> cpu{};
  /// If unset, the options of the ranks' Accelerators decide; otherwise no.
  std::optional<env::Precision> mixed_precision{};
  /// Time between SIGTERM and SIGKILL for the remaining ranks after one failed. If unset, 5 s.
  std::optional<std::chrono::milliseconds> grace_time{};
  /// Argument for the main function of every rank. It passes data that only the calling process has.
  std::string argument{};
};

/// Runs rank_main in num_processes ranks on this machine, one process each, and returns after all have succeeded. An
/// Accelerator created inside rank_main belongs to that rank. The function may be called repeatedly, from one thread.
///
/// Each rank is this program, started again with the same arguments. It runs main() up to this call, returns at once
/// from earlier calls of this function, runs rank_main, and exits. So main() must do the same in every rank until then:
/// output before the call is printed by each rank, and objects captured by rank_main are created anew. Only
/// options.argument is passed on. The calling process may already have computed with LibTorch and may have threads.
///
/// \param num_processes  1 to 4096.
/// \throws Error with the kind, number and text of the failed rank's Error: "launch_workers: rank 1 of 2: ...".
/// \throws Error (peer) for any other exception, and for a rank that ended by a signal or exit() without an error text.
/// \throws Error (usage) for options that accelerate_launch rejects, inside a rank, and if a rank's main() does not
///   reach this call.
void launch_workers(const std::function<void()>& rank_main, int64_t num_processes, const WorkerOptions& options = {});
/// \param rank_main  Receives options.argument.
void launch_workers(const std::function<void(const std::string& argument)>& rank_main, int64_t num_processes,
                    const WorkerOptions& options = {});

/// Runs rank_main on num_processes threads, as simulate() does. The ranks share this process and all its objects,
/// also LibTorch's default generators.
void run_threads(const std::function<void()>& rank_main, int64_t num_processes);

}  // namespace accelerate

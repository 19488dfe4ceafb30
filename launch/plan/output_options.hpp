// SPDX-License-Identifier: Apache-2.0
// What becomes of what the ranks print.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/plan/options.hpp"
#include "launch/plan/stream_choice.hpp"

namespace accelerate::launch {

struct OutputOptions {
  std::string log_dir{};                              ///< empty: no log files
  StreamChoice tee = StreamChoice::all();             ///< to the log file and to us
  StreamChoice redirects = StreamChoice::none();      ///< to the log file alone
  std::optional<std::vector<int64_t>> local_ranks{};  ///< that are shown; unset: all
  bool labels = false;                                ///< "[rank 3] " before each line
  bool debug = false;                                 ///< say what each rank was given
};

/// Whether a stream (0: stdout, 1: stderr) goes to its rank's log file, and to our own stdout or stderr. What goes
/// nowhere else is shown, as under torchrun.
bool goes_to_log(const OutputOptions& options, int64_t local_rank, size_t stream);
bool is_shown(const OutputOptions& options, int64_t local_rank, size_t stream);

/// With a log_dir and no word on streams all are logged and shown.
/// Throws LaunchError (2) for tee or redirects without a log_dir.
OutputOptions output_options(const LaunchOptions& options);

/// Throws LaunchError (2) where tee, redirects or the filter name a local rank that no machine has: what is meant would
/// be neither logged nor shown.
///
/// ranks   of the machine that has most
void check_local_ranks(const LaunchOptions& options, int64_t ranks);

}  // namespace accelerate::launch

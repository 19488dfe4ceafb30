// SPDX-License-Identifier: Apache-2.0
// Where the output of the ranks goes.
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
  bool debug = false;                                 ///< print the environment and command of each rank
};

/// Whether a stream (0: stdout, 1: stderr) is written to its rank's log file, and to the launcher's stdout or stderr.
/// As under torchrun, a stream that is not redirected is shown.
bool goes_to_log(const OutputOptions& options, int64_t local_rank, size_t stream);
bool is_shown(const OutputOptions& options, int64_t local_rank, size_t stream);

/// With a log_dir and no stream options, all streams are logged and shown.
/// \throws LaunchError (2) for tee or redirects without a log_dir.
OutputOptions output_options(const LaunchOptions& options);

/// \param ranks  Number of ranks of the machine with the most ranks.
/// \throws LaunchError (2) if tee, redirects or the filter name a local rank that no machine has, because its stream
///         would be neither logged nor shown.
void check_local_ranks(const LaunchOptions& options, int64_t ranks);

}  // namespace accelerate::launch

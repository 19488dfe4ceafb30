// SPDX-License-Identifier: Apache-2.0
// Destinations of the ranks' output.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launch/plan/options.hpp"
#include "launch/plan/stream_choice.hpp"

namespace accelerate::launch {

struct OutputOptions {
  std::string log_dir{};                              ///< if empty, there are no log files
  StreamChoice tee = StreamChoice::all();             ///< streams for the log file and the console
  StreamChoice redirects = StreamChoice::none();      ///< streams for the log file only
  std::optional<std::vector<int64_t>> local_ranks{};  ///< ranks to show; if unset, all
  bool labels = false;                                ///< "[rank 3] " before each line
  bool debug = false;                                 ///< print the environment and command of each rank
};

/// Returns whether a stream (0 for stdout, 1 for stderr) is written to its rank's log file, and to the launcher's
/// stdout or stderr. As in torchrun, a stream that is not redirected is shown.
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

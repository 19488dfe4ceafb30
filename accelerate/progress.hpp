// SPDX-License-Identifier: Apache-2.0
// A progress bar for loops, on the main process.
#pragma once

#include <utility>

#include "accelerate/job/start.hpp"
#include "accelerate/tracking/progress.hpp"

namespace accelerate {

using tracking::ProgressBar;
using tracking::ProgressOptions;

/// Wraps a range for a loop with a progress bar on stderr, as Python's tqdm does:
///
///   for (auto& batch : accelerate::progress(loader, {.description = "epoch 1"})) { ... }
///
/// If the returned object is stored in a variable, set_postfix("loss={:.3f}", loss) can be called on it.
///
/// \param range  An lvalue is kept by reference, an rvalue by value. Only one pass at a time is supported.
template <typename Range>
[[nodiscard]] tracking::ProgressRange<Range> progress(Range&& range, ProgressOptions options = {}) {
  options.disable = options.disable || (options.main_process_only && job::current_rank() != 0);
  return {std::forward<Range>(range), options};
}

/// Returns a progress bar without a range: call update() after each step.
[[nodiscard]] inline ProgressBar progress_bar(ProgressOptions options) {
  options.disable = options.disable || (options.main_process_only && job::current_rank() != 0);
  return ProgressBar(options);
}

}  // namespace accelerate

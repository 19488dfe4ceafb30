// SPDX-License-Identifier: Apache-2.0
// A progress bar over a loop, on the main process.
#pragma once

#include <utility>

#include "accelerate/job/start.hpp"
#include "accelerate/tracking/progress.hpp"

namespace accelerate {

using tracking::ProgressBar;
using tracking::ProgressOptions;

/// for (auto& batch : accelerate::progress(loader, {.description = "epoch 1"})) gives what the loader gives and shows
/// on stderr how far it is, as Python's tqdm does. Kept in a variable, it takes set_postfix("loss={:.3f}", loss) too.
///
/// range   an lvalue is referenced, an rvalue kept; one pass at a time
template <typename Range>
[[nodiscard]] tracking::ProgressRange<Range> progress(Range&& range, ProgressOptions options = {}) {
  options.disable = options.disable || (options.main_process_only && job::rank_here() != 0);
  return {std::forward<Range>(range), options};
}

/// The bar alone, for loops that count for themselves: update() after each step.
[[nodiscard]] inline ProgressBar progress_bar(ProgressOptions options) {
  options.disable = options.disable || (options.main_process_only && job::rank_here() != 0);
  return ProgressBar(options);
}

}  // namespace accelerate

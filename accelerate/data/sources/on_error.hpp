// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace accelerate::data {

/// Treatment of broken samples. A file that cannot be opened or read is always Error (io): it is a fault of the
/// machine, and ranks that omit what only their machine cannot read would diverge.
enum class OnError {
  fail,  ///< throws Error (data) that names it
  skip,  ///< is left out before the first epoch; how many, and the first one's error, are logged once as a warning
};

}  // namespace accelerate::data

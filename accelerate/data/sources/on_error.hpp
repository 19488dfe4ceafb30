// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace accelerate::data {

/// What a broken sample among whole ones does. A file that cannot be opened or read is Error (io) either way: that is
/// the machine's fault, and ranks that leave out what their own machine cannot read would part.
enum class OnError {
  fail,  ///< throws Error (data) that names it
  skip,  ///< is left out before the first epoch; how many, and the first one's error, are logged once as a warning
};

}  // namespace accelerate::data

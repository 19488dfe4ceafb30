// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace accelerate::data {

/// Treatment of broken samples. A file that cannot be opened or read is always Error (io): the cause is the machine,
/// and ranks would diverge if they omitted samples that only their machine cannot read.
enum class OnError {
  fail,  ///< throws Error (data) that names the sample
  skip,  ///< omits the samples before the first epoch; one warning has their number and the first error
};

}  // namespace accelerate::data

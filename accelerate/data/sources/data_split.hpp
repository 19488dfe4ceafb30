// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace accelerate::data {

/// Part of a published data set.
enum class Split { train, test };

}  // namespace accelerate::data

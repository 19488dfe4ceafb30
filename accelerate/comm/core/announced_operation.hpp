// SPDX-License-Identifier: Apache-2.0
// Private: the next operation as a group announces it to its backend.
#pragma once

#include "accelerate/comm/core/collective_fingerprint.hpp"

namespace accelerate::comm {

/// The next operation of a rank, and the parts of its fingerprint that must be equal on all ranks.
struct AnnouncedOperation {
  CollectiveFingerprint fingerprint{};
  Agreement agreement = Agreement::whole_shape;
};

}  // namespace accelerate::comm

// SPDX-License-Identifier: Apache-2.0
// Private: options of an operation of the exchanges.
#pragma once

#include <optional>

#include "accelerate/comm/core/collective_fingerprint.hpp"

namespace accelerate::comm {

/// The call that the group announced, and the parts of it that must be equal on all ranks.
struct AnnouncedOperation {
  CollectiveFingerprint fingerprint{};
  Agreement agreement = Agreement::whole_shape;
};

struct CallOptions {
  /// False if the caller waits at once, so that no thread has to wake.
  bool asynchronous = true;
  /// Compared across the ranks. If unset, the fingerprint of the tensor is compared.
  std::optional<AnnouncedOperation> announced{};
};

}  // namespace accelerate::comm

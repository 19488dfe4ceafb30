// SPDX-License-Identifier: Apache-2.0
// Private: options of an operation of the exchanges.
#pragma once

#include <optional>

#include "accelerate/comm/core/announced_operation.hpp"

namespace accelerate::comm {

struct CallOptions {
  /// False if the caller waits at once, so that no thread has to wake.
  bool asynchronous = true;
  /// Compared across the ranks. If unset, the fingerprint of the tensor is compared.
  std::optional<AnnouncedOperation> announced{};
};

}  // namespace accelerate::comm

// SPDX-License-Identifier: Apache-2.0
// Writes pickles that Python reads: pickle.loads, and torch.load(weights_only=True) where the names are its own.
#pragma once

#include <string>

#include "accelerate/archive/pickle_value.hpp"

namespace accelerate::archive {

/// Protocol 2, as torch.save writes. Containers that come twice are written twice; storages keep their identity by
/// their names. Nested more deeply than the memory of the calls allows is the caller's affair: what unpickle() gives is
/// not.
[[nodiscard]] std::string pickle(const PickleValue& value);

}  // namespace accelerate::archive

// SPDX-License-Identifier: Apache-2.0
// Writes pickles that Python reads: pickle.loads, and torch.load(weights_only=True) where the names are its own.
#pragma once

#include <string>

#include "accelerate/archive/pickle_value.hpp"

namespace accelerate::archive {

/// Protocol 2, as torch.save writes. Repeated containers are written repeatedly; storages keep their identity by name.
/// The caller must limit the nesting depth; results of unpickle() are limited.
[[nodiscard]] std::string pickle(const PickleValue& value);

}  // namespace accelerate::archive

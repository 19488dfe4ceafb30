// SPDX-License-Identifier: Apache-2.0
// Writes pickles for pickle.loads, and for torch.load(weights_only=True) if PyTorch allows the names.
#pragma once

#include <string>

#include "accelerate/archive/pickle_value.hpp"

namespace accelerate::archive {

/// Protocol 2, as torch.save writes. Repeated containers are written repeatedly; storages keep their identity by name.
/// The caller must limit the nesting depth; results of unpickle() are limited.
[[nodiscard]] std::string pickle(const PickleValue& value);

}  // namespace accelerate::archive

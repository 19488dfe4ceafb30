// SPDX-License-Identifier: Apache-2.0
// Reads Python's pickles without Python. Values are created, and nothing is executed.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "accelerate/archive/origin.hpp"
#include "accelerate/archive/pickle_value.hpp"

namespace accelerate::archive {

/// Names that a pickle may contain ("torch._utils._rebuild_tensor_v2"). Any other name is an error before it is used.
/// An entry "__torch__.*" allows all names of that module and its submodules.
using AllowedGlobals = std::set<std::string, std::less<>>;

/// Reads pickles of protocol 2 to 5 by torch.save, as PyTorch's weights_only=True does: numbers, texts, bytes, lists,
/// tuples, dicts, calls of allowed names, and storages.
///
/// \throws Error (data) with the position if the pickle is truncated, contains an unsupported instruction or name,
///         refers to a missing value, contains itself, is nested more than 100 deep, or represents more than 4 million
///         values or 256 MiB of repeated texts (a few bytes can represent billions).
[[nodiscard]] PickleValue unpickle(std::string_view pickle, const AllowedGlobals& allowed, const Origin& origin);

}  // namespace accelerate::archive

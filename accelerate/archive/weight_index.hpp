// SPDX-License-Identifier: Apache-2.0
// "model.safetensors.index.json": the file beside a model's shards, as Hugging Face's libraries write it.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "accelerate/archive/origin.hpp"

namespace accelerate::archive {

/// Tensor to file, in the index's own folder.
using WeightIndex = std::map<std::string, std::string>;

/// Throws Error (data) for what is no such index, for one that names a file outside of its folder, and for one that
/// names anything twice.
[[nodiscard]] WeightIndex read_weight_index(std::string_view text, const Origin& origin);

}  // namespace accelerate::archive

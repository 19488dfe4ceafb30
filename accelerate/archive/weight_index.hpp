// SPDX-License-Identifier: Apache-2.0
// "model.safetensors.index.json": the index beside a model's shards, in the format of Hugging Face's libraries.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "accelerate/archive/origin.hpp"

namespace accelerate::archive {

/// Maps tensors to files in the index's folder.
using WeightIndex = std::map<std::string, std::string>;

/// \throws Error (data) if the text is not an index, names a file outside its folder, or has a duplicate name.
[[nodiscard]] WeightIndex read_weight_index(std::string_view text, const Origin& origin);

}  // namespace accelerate::archive

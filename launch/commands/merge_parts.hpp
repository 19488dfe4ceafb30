// SPDX-License-Identifier: Apache-2.0
// Whole tensors of a checkpoint of which each rank saved its parts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/archive/safetensors.hpp"
#include "accelerate/archive/sink.hpp"
#include "launch/commands/weights.hpp"

namespace accelerate::launch {

/// The tensors of one model of a checkpoint. Refers to mapped files.
struct ModelInParts {
  /// By name, with the bytes of all elements in order.
  std::map<std::string, std::vector<std::string_view>> bytes{};
  std::vector<archive::SafetensorsEntry> entries{};
  std::map<std::string, std::string> ties{};  ///< tied names, each with the name that is in `entries`
  std::vector<WeightFile> files{};
};

/// True if the folder is a checkpoint of this library that has the model, but no file with the whole model.
[[nodiscard]] bool has_model_in_parts(const std::filesystem::path& folder, int64_t model);

/// Compares the files with their checksums in the manifest.
/// \throws Error (io) for a missing file; Error (data) if a file is damaged, or if elements of a tensor are missing.
[[nodiscard]] ModelInParts read_parts(const std::filesystem::path& folder, int64_t model, std::string_view operation);

/// Writes a safetensors file. Needs no memory for the tensors.
void write_parts(ModelInParts model, archive::Sink& sink, std::string_view operation);

}  // namespace accelerate::launch

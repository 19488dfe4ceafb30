// SPDX-License-Identifier: Apache-2.0
// Reads a checkpoint folder of this library or of Hugging Face Accelerate.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "accelerate/archive/manifest.hpp"
#include "accelerate/checkpoint/checkpoint_content.hpp"
#include "accelerate/state/saved_elements.hpp"

namespace accelerate::checkpoint {

struct CheckpointReader {
  /// Without parts. Tensors of models, masters and optimizers that several ranks saved, also with DCP, are
  /// placeholders.
  CheckpointContent content{};
  /// Reads placeholders; unset if there are none.
  state::ReadElements elements{};
  std::optional<archive::Manifest> manifest{};  ///< unset if another library wrote the folder
  bool has_own_part = true;                     ///< false if the saved job did not have this rank
  bool has_random_states = true;
  /// False if the first optimizer of a Hugging Face Accelerate checkpoint counts no steps.
  bool knows_step = true;
};

/// Tensors are in mapped files and are read on access. Only the formats are verified.
///
/// \param rank  Selects the random states and the open window. A rank that the saved job did not have gets those of the
///         lowest rank in the folder.
/// \throws Error (io) for a missing file; Error (data) for an invalid one.
[[nodiscard]] CheckpointReader read_checkpoint(const std::filesystem::path& folder, int64_t rank,
                                               c10::DeviceType accelerator, std::string_view operation);

}  // namespace accelerate::checkpoint

// SPDX-License-Identifier: Apache-2.0
// A checkpoint's folder, ours or Hugging Face Accelerate's, as content.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "accelerate/archive/manifest.hpp"
#include "accelerate/checkpoint/content.hpp"

namespace accelerate::checkpoint {

struct Read {
  Content content{};
  std::optional<archive::Manifest> manifest{};  ///< unset: the folder is not of this library
  bool has_own_part = true;                     ///< false: this rank was not there when it was saved
  bool has_random_states = true;
  bool knows_step = true;  ///< false: of Hugging Face Accelerate, whose first optimizer does not count its steps
};

/// Tensors are in mapped files and are read on access. Only the formats are verified.
///
/// \param rank  Rank whose random states and open window are read. A rank that the saved job did not have gets rank
/// 0's. \throws Error (io) for a missing file; Error (data) for an invalid one.
[[nodiscard]] Read read(const std::filesystem::path& folder, int64_t rank, c10::DeviceType accelerator,
                        std::string_view operation);

}  // namespace accelerate::checkpoint

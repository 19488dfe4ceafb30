// SPDX-License-Identifier: Apache-2.0
// Names of a checkpoint's files. Files that Hugging Face Accelerate also has get its names.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace accelerate::checkpoint {

/// "model.safetensors", "model_1.safetensors" ...
inline std::string numbered(std::string_view stem, int64_t index, std::string_view suffix) {
  return index == 0 ? fmt::format("{}{}", stem, suffix) : fmt::format("{}_{}{}", stem, index, suffix);
}

inline std::string model_file(int64_t i) { return numbered("model", i, ".safetensors"); }
inline std::string model_bin_file(int64_t i) { return numbered("pytorch_model", i, ".bin"); }
inline std::string optimizer_file(int64_t i) { return numbered("optimizer", i, ".bin"); }
inline std::string scheduler_file(int64_t i) { return numbered("scheduler", i, ".bin"); }
inline std::string loader_file(int64_t i) { return numbered("loader_state", i, ".bin"); }
inline std::string loader_generator_file(int64_t i) { return numbered("loader_generator", i, ".bin"); }
inline std::string custom_file(int64_t i) { return fmt::format("custom_checkpoint_{}.pkl", i); }
inline std::string random_file(int64_t rank) { return fmt::format("random_states_{}.pkl", rank); }
inline std::string window_file(int64_t rank) { return fmt::format("window_{}.bin", rank); }
inline std::string buffers_file(int64_t rank) { return fmt::format("buffers_{}.bin", rank); }
inline std::string comm_hooks_file(int64_t rank) { return fmt::format("comm_hooks_{}.bin", rank); }
/// Tensors of a model of which no rank has only a part, beside the files of the ranks' parts.
inline std::string whole_tensors_file(int64_t i) { return numbered("whole_tensors", i, ".safetensors"); }
inline std::string parts_file(int64_t rank) { return fmt::format("parts_{}.safetensors", rank); }
inline constexpr std::string_view kScalerFile = "scaler.pt";
inline constexpr std::string_view kMastersFile = "master_weights.safetensors";

/// Writer of a checkpoint, in the manifest and in the random states: "accelerate-cpp 0.2.0".
[[nodiscard]] std::string_view library();

}  // namespace accelerate::checkpoint

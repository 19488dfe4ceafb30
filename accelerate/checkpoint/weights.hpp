// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/checkpoint/tensors.hpp"

namespace accelerate::checkpoint {

struct WeightsOptions {
  /// Larger weights are shared out over several files: bytes, or a number with KB, MB, GB (decimal), KiB, MiB or GiB.
  std::string max_shard_size = "10GB";
  /// Safetensors; else files of torch.save.
  bool safe_serialization = true;
};

/// Bytes of a size as WeightsOptions has it. Throws Error (usage) for another text.
[[nodiscard]] uint64_t parse_size(std::string_view text, std::string_view operation = "save_model");

/// A file of weights that are shared out over several.
struct Shard {
  std::string file{};
  NamedTensors tensors{};
};

/// Weights in files of at most so many bytes each, in order; what is larger is one by itself, and tied ones are
/// together. One file has the whole's name, "model.safetensors"; several have "model-00001-of-0000N.safetensors".
[[nodiscard]] std::vector<Shard> share_out(const NamedTensors& tensors, std::string_view whole, uint64_t most_bytes);
/// The index of several: its text, and the name of its file.
[[nodiscard]] std::string index_text(const std::vector<Shard>& shards);
[[nodiscard]] std::string index_name(std::string_view whole);

/// Writes model.safetensors, or model-00001-of-0000N.safetensors and an index (pytorch_model.bin likewise), into the
/// folder; each file takes its place as a whole, when all have been written. Weights that would be read with these or
/// instead of them go: of the same format, and beside pytorch_model.bin those in safetensors. The rest stays. Between
/// the first and the last of several there is no index: a program that is killed there leaves what nobody reads.
/// Throws Error: usage where a checkpoint has a file of that name, io where the system refuses; what was there before
/// is there then, as long as no file took its place.
void save_weights(const std::filesystem::path& folder, const NamedTensors& tensors, const WeightsOptions& options,
                  std::string_view operation);

/// One file: safetensors by its name, else as torch.save writes a dict.
void save_file(const std::filesystem::path& path, const NamedTensors& tensors, std::string_view operation);

/// The weights in a file (.safetensors, or of torch.save), or in a folder: model.safetensors, the sharded files of
/// model.safetensors.index.json, or the same of pytorch_model.bin. Tensors lie in the mapped files.
/// Throws Error: io where there is none, data for an index that names files outside its folder, or tensors that are not
/// in them, and for a checkpoint's file that is not as its manifest says.
[[nodiscard]] NamedTensors read_weights(const std::filesystem::path& path, std::string_view operation);

}  // namespace accelerate::checkpoint

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/checkpoint/tensors.hpp"
#include "accelerate/state/saved_elements.hpp"

namespace accelerate::checkpoint {

struct WeightsOptions {
  /// Maximum size of a file; larger weights are split. Bytes, or a number with KB, MB, GB (decimal), KiB, MiB or GiB.
  std::string max_shard_size = "10GB";
  /// If true, safetensors files are written; otherwise files of torch.save.
  bool safe_serialization = true;
};

/// Bytes of a size text as in WeightsOptions. \throws Error (usage) that names the option for an invalid text.
[[nodiscard]] uint64_t parse_size(std::string_view text, std::string_view operation = "save_model",
                                  std::string_view option = "max_shard_size");

/// One of the files that weights are split into.
struct Shard {
  std::string file{};
  NamedTensors tensors{};
};

/// Splits weights into files of at most `max_bytes` each, in order. A larger tensor has its own file, and tied tensors
/// stay together. A single file is named "model.safetensors"; several are named "model-00001-of-0000N.safetensors".
[[nodiscard]] std::vector<Shard> assign_to_ranks(const NamedTensors& tensors, std::string_view whole,
                                                 uint64_t max_bytes);
/// Text and file name of the index of several shards.
[[nodiscard]] std::string index_text(const std::vector<Shard>& shards);
[[nodiscard]] std::string index_name(std::string_view whole);

/// Writes model.safetensors, or model-00001-of-0000N.safetensors and an index (similarly pytorch_model.bin), into the
/// folder. Each file is moved into place after all have been written. Weights that readers would combine with these or
/// prefer to them are removed: those of the same format, and safetensors beside pytorch_model.bin. Other files stay.
/// While several files are replaced there is no index, so a kill leaves nothing that readers accept.
/// \throws Error (usage) if a checkpoint has a file of that name; Error (io) if the system refuses. The previous files
///         are unchanged unless a file was already moved into place.
/// \param provide  Returns the values of tensors that are placeholders.
void save_weights(const std::filesystem::path& folder, const NamedTensors& tensors, const WeightsOptions& options,
                  std::string_view operation, const ProvideValues& provide = {});

/// Returns the placeholders in the order in which save_weights() needs their values.
/// \throws Error (usage) as save_weights() for tensors and options.
[[nodiscard]] std::vector<at::Tensor> placeholders_in_order(const NamedTensors& tensors, const WeightsOptions& options,
                                                            std::string_view operation);

/// Writes one file: safetensors if its extension is ".safetensors"; otherwise a dict as torch.save writes it.
void save_file(const std::filesystem::path& path, const NamedTensors& tensors, std::string_view operation);

struct SavedWeights {
  NamedTensors tensors{};
  /// Reads placeholders among the tensors; unset if there are none.
  state::ReadElements elements{};
};

/// As read_weights(), but tensors that several ranks saved in parts, also with DCP, are placeholders.
[[nodiscard]] SavedWeights open_weights(const std::filesystem::path& path, std::string_view operation);

/// Reads weights from a file (.safetensors or torch.save) or a folder: model.safetensors, the shards of
/// model.safetensors.index.json, the same with pytorch_model.bin, the first model of a checkpoint that ranks saved in
/// parts, a folder of torch.distributed.checkpoint, or a checkpoint of Hugging Face Accelerate's FSDP. Tensors refer to
/// the mapped files, except those that several files contain in parts, which are copied.
/// \throws Error (io) if there are none; Error (data) for an index with files outside its folder or with missing
///         tensors, and for a checkpoint file that does not match its manifest.
[[nodiscard]] NamedTensors read_weights(const std::filesystem::path& path, std::string_view operation);

}  // namespace accelerate::checkpoint

// SPDX-License-Identifier: Apache-2.0
// Tensors of a weight file or of a sharded model in any supported format. Only headers are read; the data is mapped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/archive/mapped_file.hpp"

namespace accelerate::launch {

struct Weight {
  std::string name{};
  std::string dtype{};  ///< name in safetensors
  std::vector<uint64_t> shape{};
  uint64_t elements = 0;
  uint64_t bytes = 0;
  std::string memory{};     ///< identifies the memory; equal for tensors that share it
  std::string_view data{};  ///< row-major; empty if the file has other strides
};

/// Tensors of a file, which stays mapped during the lifetime of this object.
struct WeightFile {
  std::shared_ptr<const archive::MappedFile> file{};
  std::vector<Weight> weights{};
  std::vector<std::pair<std::string, std::string>> others{};  ///< numbers and texts of a torch.save file
  std::map<std::string, std::string> metadata{};              ///< of a safetensors file
  std::map<std::string, std::string> ties{};                  ///< for a shard: name in the index to tensor in the file
};

/// Reads a safetensors or torch.save file; the first bytes determine the format.
/// \throws Error (data, io) with the path.
WeightFile read_weight_file(const std::filesystem::path& path, std::string_view operation);

/// Reads the shards that an index file lists; each tensor appears once. A name in the index may also be a tied tensor:
/// the shard's metadata then names the equal tensor, as save_model() writes it.
///
/// \throws Error (data) if index and shards disagree, with the tensor and both files.
std::vector<WeightFile> read_sharded(const std::filesystem::path& index, std::string_view operation);

/// Returns "[64, 10]".
std::string text_of_shape(const std::vector<uint64_t>& shape);

}  // namespace accelerate::launch

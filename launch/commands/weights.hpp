// SPDX-License-Identifier: Apache-2.0
// The tensors of a file or of a sharded model, whatever wrote them. Only headers are read; the bytes are mapped.
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
  std::string dtype{};  ///< as safetensors calls it
  std::vector<uint64_t> shape{};
  uint64_t elements = 0;
  uint64_t bytes = 0;
  std::string memory{};     ///< the same for tensors that share theirs
  std::string_view data{};  ///< row-major; empty where the file holds them with other strides
};

/// A file's tensors; it stays mapped as long as this lives.
struct WeightFile {
  std::shared_ptr<const archive::MappedFile> file{};
  std::vector<Weight> weights{};
  std::vector<std::pair<std::string, std::string>> others{};  ///< numbers and texts of a file of torch.save
  std::map<std::string, std::string> metadata{};              ///< of a safetensors file
  std::map<std::string, std::string> ties{};                  ///< of a shard: name in the index to tensor in the file
};

/// One file of safetensors or of torch.save, told apart by what it begins with.
/// Throws Error (data, io) with the path.
WeightFile read_weight_file(const std::filesystem::path& path, std::string_view operation);

/// The shards that an index beside them lists, each tensor once. A name may also be that of a tie: a shard's metadata
/// says which tensor of its own is the same, as save_model() writes it.
///
/// Throws Error (data) where index and shards disagree, with the tensor and both files.
std::vector<WeightFile> read_sharded(const std::filesystem::path& index, std::string_view operation);

/// "[64, 10]"
std::string text_of_shape(const std::vector<uint64_t>& shape);

}  // namespace accelerate::launch

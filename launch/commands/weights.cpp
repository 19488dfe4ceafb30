// SPDX-License-Identifier: Apache-2.0
#include "launch/commands/weights.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <set>

#include "accelerate/archive/safetensors.hpp"
#include "accelerate/archive/torch_file.hpp"
#include "accelerate/archive/weight_index.hpp"
#include "accelerate/archive/zip.hpp"

namespace accelerate::launch {
namespace {

namespace fs = std::filesystem;

// True for ZIP files and for pickles of PyTorch before 1.6, for which the ZIP reader has an error message. No
// safetensors file begins with these bytes: its header would have 67 or 176 MB.
bool is_of_torch(const archive::MappedFile& file) {
  return file.path().extension() != ".safetensors" &&
         (file.text().starts_with("PK\x03\x04") || archive::is_torch_before_1_6(file.text()));
}

void add_safetensors(WeightFile& result, const archive::Origin& origin) {
  const std::string_view text = result.file->text();
  archive::SafetensorsHeader header = archive::read_safetensors(text, origin);
  result.metadata = std::move(header.metadata);
  for (const auto& entry : header.tensors) {
    const uint64_t bytes = entry.end - entry.begin;
    result.weights.push_back({.name = entry.name,
                              .dtype = entry.dtype,
                              .shape = entry.shape,
                              .elements = bytes * 8 / archive::safetensors_bits(entry.dtype).value(),
                              .bytes = bytes,
                              .memory = fmt::format("{}:{}", origin.path, entry.name),
                              .data = text.substr(header.data_begin + entry.begin, bytes)});
  }
}

// Saturates, because expanded tensors may have more elements than any memory.
uint64_t bytes_of_elements(uint64_t elements, uint64_t bits) {
  uint64_t bytes = 0;
  return __builtin_mul_overflow(elements, bits / 8, &bytes) ? std::numeric_limits<uint64_t>::max() : bytes;
}

void add_torch(WeightFile& result, const archive::Origin& origin) {
  const std::string_view text = result.file->text();
  archive::TorchFile file = archive::read_torch_file(text, origin);
  result.others = std::move(file.others);
  for (const auto& tensor : file.tensors) {
    const bool are_elements = tensor.is_contiguous() && !tensor.is_conj && !tensor.is_neg;
    result.weights.push_back(
        {.name = tensor.path,
         .dtype = tensor.dtype,
         .shape = tensor.shape,
         .elements = tensor.elements,
         .bytes = bytes_of_elements(tensor.elements, tensor.bits),
         .memory = fmt::format("{}:{}:{}:{}", origin.path, tensor.storage, tensor.offset, tensor.elements),
         .data = are_elements ? tensor.bytes_of(text) : std::string_view()});
  }
}

}  // namespace

WeightFile read_weight_file(const fs::path& path, std::string_view operation) {
  WeightFile result{.file = std::make_shared<archive::MappedFile>(path, operation)};
  const archive::Origin origin{.path = path.string(), .operation = std::string(operation)};
  is_of_torch(*result.file) ? add_torch(result, origin) : add_safetensors(result, origin);
  return result;
}

std::vector<WeightFile> read_sharded(const fs::path& index, std::string_view operation) {
  const archive::Origin origin{.path = index.string(), .operation = std::string(operation)};
  const auto listed = archive::read_weight_index(archive::MappedFile(index, operation).text(), origin);
  std::set<std::string> names;
  for (const auto& [tensor, file] : listed) names.insert(file);
  std::vector<WeightFile> shards;
  std::set<std::string> found;
  for (const std::string& name : names) {
    shards.push_back(read_weight_file(index.parent_path() / name, operation));
    for (const Weight& weight : shards.back().weights) {
      const auto where = listed.find(weight.name);
      if (where == listed.end()) {
        origin.broken("{} holds {}, which the index does not list", name, archive::quote_for_terminal(weight.name));
      }
      if (where->second != name) {
        origin.broken("the index maps {} to {}, but {} contains it too", archive::quote_for_terminal(weight.name),
                      where->second, name);
      }
      found.insert(weight.name);
    }
  }
  for (WeightFile& shard : shards) {
    const std::string name = shard.file->path().filename().string();
    for (const auto& [tie, of] : shard.metadata) {
      const auto where = listed.find(tie);
      const auto same = listed.find(of);
      if (where == listed.end() || where->second != name || found.contains(tie)) continue;
      // Accepts only a tied tensor in the same shard: otherwise moving that shard would lose the tensor.
      if (same == listed.end() || same->second != name || !found.contains(of)) continue;
      shard.ties.emplace(tie, of);
    }
  }
  for (const WeightFile& shard : shards) {
    for (const auto& [tie, of] : shard.ties) found.insert(tie);
  }
  for (const auto& [tensor, file] : listed) {
    if (!found.contains(tensor)) {
      origin.broken("the index maps {} to {}, which does not contain it", archive::quote_for_terminal(tensor), file);
    }
  }
  return shards;
}

std::string text_of_shape(const std::vector<uint64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

}  // namespace accelerate::launch

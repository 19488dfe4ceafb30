// SPDX-License-Identifier: Apache-2.0
// A temporary folder and small files for tests.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "accelerate/archive/checkpoint_folder.hpp"
#include "accelerate/archive/safetensors.hpp"
#include "accelerate/archive/sink.hpp"
#include "tests/temporary_folder.hpp"

namespace testing {

inline void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct SmallTensor {
  std::string name, dtype;
  std::vector<uint64_t> shape;
  std::string bytes;
};

/// Float32 numbers as bytes.
inline std::string floats(const std::vector<float>& numbers) {
  std::string bytes(numbers.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

inline std::string safetensors_of(const std::vector<SmallTensor>& tensors,
                                  const std::map<std::string, std::string>& metadata = {}) {
  std::vector<accelerate::archive::SafetensorsEntry> entries;
  for (const auto& t : tensors) entries.push_back({.name = t.name, .dtype = t.dtype, .shape = t.shape});
  std::string file = accelerate::archive::write_safetensors(entries, metadata, "test");
  for (const auto& entry : entries) {
    for (const auto& t : tensors) file += t.name == entry.name ? t.bytes : "";
  }
  return file;
}

/// Saves a checkpoint folder with one model.
inline void save_checkpoint(const std::filesystem::path& place, const std::vector<SmallTensor>& tensors, int64_t step) {
  using namespace accelerate::archive;
  AtomicFolder folder(place, "save_state");
  FileSink sink(folder.path() / "model.safetensors", "save_state");
  sink.write(safetensors_of(tensors));
  sink.finish(false);
  Manifest manifest{.library = "accelerate 0.1.0", .world_size = 2, .step = step, .epoch = 1};
  manifest.files = {{"model.safetensors", sink.written(), sink.checksum()}};
  manifest.parts = {{"model", 0, {"model.safetensors"}}};
  for (const auto& t : tensors) {
    uint64_t elements = 1;
    for (const uint64_t n : t.shape) elements *= n;
    manifest.ranges.push_back({"model.0/" + t.name, t.shape, 0, elements, "model.safetensors", t.name});
  }
  folder.commit(manifest, false);
}

}  // namespace testing

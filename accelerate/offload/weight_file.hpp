// SPDX-License-Identifier: Apache-2.0
// Private: tensors in safetensors files, which are read in parts and on any thread.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::offload {

/// An open file. It stays readable if it is removed.
class WeightFile {
 public:
  /// \throws Error (io) if the file cannot be opened.
  WeightFile(std::filesystem::path path, std::string_view operation);
  /// Thread-safe. \throws Error (io) if the file is shorter now.
  void read(uint64_t begin, void* to, size_t bytes) const;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  base::FileDescriptor file_;
};

struct FileTensor {
  std::shared_ptr<const WeightFile> file{};
  uint64_t begin = 0;
  std::vector<int64_t> sizes{};
  c10::ScalarType dtype = c10::ScalarType::Float;
};

using FileTensors = std::map<std::string, FileTensor>;

/// True for a safetensors file, an index of such files, or a folder with one of them.
[[nodiscard]] bool has_safetensors(const std::filesystem::path& path);
/// Reads the headers. Tied tensors are in the result under all their names.
/// \throws Error (io) or Error (data) for missing or invalid files.
[[nodiscard]] FileTensors open_safetensors(const std::filesystem::path& path, std::string_view operation);

}  // namespace accelerate::offload

// SPDX-License-Identifier: Apache-2.0
// Tensors in files of the safetensors format.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "accelerate/archive/mapped_file.hpp"
#include "accelerate/archive/safetensors.hpp"
#include "accelerate/archive/sink.hpp"
#include "accelerate/checkpoint/tensors.hpp"

namespace accelerate::checkpoint {

/// Writes a whole file. Names of tensors that are the same memory, shape and strides (tied weights) after the first are
/// not written: the metadata says of each whose it is, as safetensors.torch.save_model() does.
///
/// Throws Error (usage) with its name for a tensor whose dtype the format lacks.
void write_safetensors_file(archive::Sink& sink, const NamedTensors& tensors, std::string_view operation);

/// The names that are left out, each with the one that is written in its place.
[[nodiscard]] std::map<std::string, std::string> tied(const NamedTensors& tensors);

/// A mapped file and its header, checked.
class SafetensorsFile {
 public:
  /// Throws Error: io where it cannot be opened, data for a file that is none.
  SafetensorsFile(const std::filesystem::path& path, std::string_view operation);

  [[nodiscard]] const archive::SafetensorsHeader& header() const { return header_; }
  /// Its tensors under their names, tied ones under all of theirs. They lie in the mapped file where they are aligned,
  /// and are read when they are touched; the file stays mapped as long as one of them lives. Throws Error (data) for a
  /// dtype that LibTorch lacks.
  [[nodiscard]] NamedTensors tensors() const;

 private:
  std::shared_ptr<archive::MappedFile> file_;
  archive::Origin origin_;
  archive::SafetensorsHeader header_;
};

}  // namespace accelerate::checkpoint

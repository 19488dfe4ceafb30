// SPDX-License-Identifier: Apache-2.0
// Tensors in files of the safetensors format.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/archive/mapped_file.hpp"
#include "accelerate/archive/safetensors.hpp"
#include "accelerate/archive/sink.hpp"
#include "accelerate/checkpoint/tensors.hpp"

namespace accelerate::checkpoint {

/// Writes a whole file. If tensors have equal memory, shape and strides (tied weights), only the first is written; the
/// metadata maps the others to it, as safetensors.torch.save_model() does.
///
/// \param provide  Returns the values of tensors that are placeholders.
/// \throws Error (usage) with the name of a tensor if the format lacks its dtype.
void write_safetensors_file(archive::Sink& sink, const NamedTensors& tensors, std::string_view operation,
                            const ProvideValues& provide = {});

/// Returns the placeholders in the order in which write_safetensors_file() needs their values.
[[nodiscard]] std::vector<at::Tensor> placeholders_in_safetensors_order(const NamedTensors& tensors,
                                                                        std::string_view operation);

/// Returns the names that are not written, each with the name of the tied tensor that is written.
[[nodiscard]] std::map<std::string, std::string> tied(const NamedTensors& tensors);

/// A mapped file and its verified header.
class SafetensorsFile {
 public:
  /// \throws Error (io) if the file cannot be opened; Error (data) if it is invalid.
  SafetensorsFile(const std::filesystem::path& path, std::string_view operation);

  [[nodiscard]] const archive::SafetensorsHeader& header() const { return header_; }
  /// Returns the tensors by name, tied tensors under all their names. Aligned tensors refer to the mapped file and are
  /// read on access; the file stays mapped while one of them exists. \throws Error (data) for a dtype that LibTorch
  /// lacks.
  [[nodiscard]] NamedTensors tensors() const;

 private:
  std::shared_ptr<archive::MappedFile> file_;
  archive::Origin origin_;
  archive::SafetensorsHeader header_;
};

}  // namespace accelerate::checkpoint

// SPDX-License-Identifier: Apache-2.0
// Private: the weights of a file or checkpoint, compared with the parameters of a module.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/offload/module_items.hpp"
#include "accelerate/offload/offloaded_units.hpp"
#include "accelerate/offload/weight_file.hpp"
#include "accelerate/offload/weight_source.hpp"

namespace torch::nn {
class Module;
}

namespace accelerate::offload {

/// All names of each distinct tensor of a module, by the first one.
using NamesOfTensors = std::map<std::string, std::vector<std::string>>;
[[nodiscard]] NamesOfTensors names_of_tensors(const torch::nn::Module& module);

/// Weights by name. Their values are not read before they are needed.
class SavedValues {
 public:
  /// \param operation  Name of the user's call for errors.
  SavedValues(const std::filesystem::path& path, std::string_view operation);

  /// \returns The source of a tensor under any of its names, unset if the weights lack a buffer.
  /// \throws Error (data) if the weights lack a parameter, or have the tensor with another shape.
  [[nodiscard]] std::optional<WeightSource> source_of(const TensorItem& item, const NamesOfTensors& names) const;
  /// Returns the names of all weights.
  [[nodiscard]] std::vector<std::string> names() const;
  /// Writes weights that are not in safetensors files into a folder, and uses these instead.
  void ensure_files(const std::filesystem::path& folder);

 private:
  [[nodiscard]] std::optional<WeightSource> find(const std::vector<std::string>& names, at::IntArrayRef expected) const;

  std::filesystem::path path_;
  std::string operation_;
  FileTensors files_{};
  std::map<std::string, at::Tensor> tensors_{};  // of a checkpoint in another format
};

/// Returns the present values of a tensor of a module as a source.
[[nodiscard]] WeightSource values_on_cpu(const at::Tensor& tensor);

/// Reads a source into new memory on the CPU, converted to the dtype.
[[nodiscard]] at::Tensor read_source(const WeightSource& source, at::IntArrayRef sizes, c10::ScalarType dtype);

}  // namespace accelerate::offload

// SPDX-License-Identifier: Apache-2.0
// What lies in a file of torch.save, without LibTorch: pytorch_model.bin, optimizer.bin, random_states_0.pkl.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/archive/origin.hpp"

namespace accelerate::archive {

struct TorchTensor {
  std::string path{};   ///< keys and positions on the way to it: "state.0.exp_avg"
  std::string dtype{};  ///< as safetensors calls it, "F32"; "C128" too
  std::vector<uint64_t> shape{}, stride{};
  uint64_t elements = 0;
  uint64_t bits = 0;            ///< of an element
  uint64_t offset = 0;          ///< of its first element in its storage
  std::string storage{};        ///< tensors of one storage share its memory
  uint64_t begin = 0, end = 0;  ///< bytes of its storage in the file

  bool operator==(const TorchTensor&) const = default;

  /// Its elements lie one after another, in row-major order.
  [[nodiscard]] bool is_contiguous() const;
  /// The bytes of a contiguous one.
  [[nodiscard]] std::string_view bytes_of(std::string_view file) const;
};

struct TorchFile {
  std::vector<TorchTensor> tensors{};                         ///< in the order of the file
  std::vector<std::pair<std::string, std::string>> others{};  ///< path to text: "param_groups.0.lr", "0.001"
};

/// Reads the structure; of the tensors' bytes, none.
///
/// Throws Error (data) for what torch.save did not write, holds other names than numbers, containers, tensors and NumPy
/// arrays need, or has a tensor that does not fit into its storage.
[[nodiscard]] TorchFile read_torch_file(std::string_view file, const Origin& origin);

}  // namespace accelerate::archive

// SPDX-License-Identifier: Apache-2.0
// Content of torch.save files without LibTorch: pytorch_model.bin, optimizer.bin, random_states_0.pkl. Also reads files
// of torch::save(), which writes TorchScript.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/archive/origin.hpp"
#include "accelerate/archive/pickle_value.hpp"
#include "accelerate/archive/zip.hpp"

namespace accelerate::archive {

struct TorchTensor {
  std::string path{};   ///< keys and positions that lead to it: "state.0.exp_avg"
  std::string dtype{};  ///< name in safetensors, "F32"; also "C128"
  std::vector<uint64_t> shape{}, stride{};
  uint64_t elements = 0;
  uint64_t bits = 0;            ///< of an element
  uint64_t offset = 0;          ///< of its first element in its storage
  std::string storage{};        ///< tensors of one storage share its memory
  uint64_t begin = 0, end = 0;  ///< bytes of its storage in the file
  bool is_conj = false;         ///< the elements are the complex conjugates of the bytes (PyTorch's conj bit)
  bool is_neg = false;          ///< the elements are the negatives of the bytes (PyTorch's neg bit)

  bool operator==(const TorchTensor&) const = default;

  /// True if the elements are contiguous in row-major order.
  [[nodiscard]] bool is_contiguous() const;
  /// Returns the bytes of a contiguous tensor.
  [[nodiscard]] std::string_view bytes_of(std::string_view file) const;
};

/// An open torch.save file: its value, and access to its tensors. The file's bytes must outlive it.
class TorchArchive {
 public:
  /// \throws Error (data) if torch.save did not write the file, and for names that numbers, containers, tensors and
  ///         NumPy arrays do not need.
  TorchArchive(std::string_view file, Origin origin);

  [[nodiscard]] const PickleValue& root() const { return root_; }
  [[nodiscard]] const Origin& origin() const { return origin_; }
  /// True if the value is a tensor or a Parameter, with or without Python attributes.
  [[nodiscard]] static bool is_tensor(const PickleValue& value);
  /// Returns the members of a LibTorch module or archive, as C++ torch::save() and TorchScript write it. Null for any
  /// other value.
  [[nodiscard]] static const PickleEntries* members_of_module(const PickleValue& value);
  /// Describes a tensor without reading its bytes.
  /// \param path  Path of the value for errors.
  /// \throws Error (data) if the value is not a tensor or does not fit into its storage.
  [[nodiscard]] TorchTensor tensor(const PickleValue& value, const std::string& path) const;

 private:
  void place(TorchTensor& tensor, const PickleItems& id) const;
  [[nodiscard]] uint64_t natural(const PickleValue& value, const std::string& path) const;
  [[nodiscard]] std::vector<uint64_t> naturals(const PickleValue& value, const std::string& path) const;
  void check_extent(TorchTensor& tensor) const;
  void read_bits(TorchTensor& tensor, const PickleValue& metadata) const;

  Origin origin_;
  std::map<std::string, ZipMember> members_;  // by name within the archive's own folder
  PickleValue root_;
};

struct TorchFile {
  std::vector<TorchTensor> tensors{};                         ///< in the order of the file
  std::vector<std::pair<std::string, std::string>> others{};  ///< path to text: "param_groups.0.lr", "0.001"
};

/// Reads the structure without the tensors' bytes.
///
/// \throws Error (data) if torch.save did not write the file, for names that numbers, containers, tensors and NumPy
///         arrays do not need, and for a tensor that does not fit into its storage.
[[nodiscard]] TorchFile read_torch_file(std::string_view file, const Origin& origin);

}  // namespace accelerate::archive

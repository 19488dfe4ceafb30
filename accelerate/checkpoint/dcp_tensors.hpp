// SPDX-License-Identifier: Apache-2.0
// Private: tensors of DCP folders as placeholders, so that a rank reads only the elements that it keeps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "accelerate/archive/dcp_folder.hpp"
#include "accelerate/state/saved_elements.hpp"

namespace accelerate::checkpoint {

class DcpTensors {
 public:
  /// Returns a placeholder on the meta device; read() has its elements. A tensor of at most one element is returned
  /// with its value.
  ///
  /// \param tensor  From `folder->metadata()`.
  /// \throws Error (data) for a dtype that LibTorch lacks, and as DcpFolder::read() for the whole tensor; Error (io)
  /// for
  ///         a missing file.
  [[nodiscard]] at::Tensor tensor(const std::shared_ptr<archive::DcpFolder>& folder, const archive::DcpTensor& tensor);

  /// Returns elements of a placeholder that this object returned; see state::ReadElements. Long runs of elements refer
  /// to the mapped file; short ones are copied into one piece.
  [[nodiscard]] std::vector<state::SavedElements> read(const at::Tensor& placeholder, int64_t begin, int64_t end);

 private:
  struct Saved {
    at::Tensor placeholder{};  ///< keeps its address in use
    std::shared_ptr<archive::DcpFolder> folder{};
    const archive::DcpTensor* tensor = nullptr;
  };
  std::unordered_map<const void*, Saved> saved_;  // by TensorImpl
};

}  // namespace accelerate::checkpoint

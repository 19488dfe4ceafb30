// SPDX-License-Identifier: Apache-2.0
// The file .metadata of a folder that torch.distributed.checkpoint (DCP) wrote: which file contains which part of which
// tensor. Nothing of the pickle is executed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/archive/origin.hpp"

namespace accelerate::archive {

inline constexpr std::string_view kDcpMetadataName = ".metadata";

/// An item of a file: a value as torch.save writes it.
struct DcpItem {
  std::string file{};  ///< name in the folder: "__0_0.distcp"
  uint64_t begin = 0;  ///< bytes in the file
  uint64_t size = 0;
};

/// A rectangular part of a tensor.
struct DcpChunk {
  std::vector<uint64_t> offsets{}, sizes{};  ///< in elements, one per dimension
  uint64_t elements = 0;
  DcpItem item{};  ///< without a file name if the chunk has no elements
};

struct DcpTensor {
  std::string name{};               ///< "optimizer.state.fc.weight.exp_avg"
  std::vector<std::string> path{};  ///< keys of the nested dicts: "optimizer", "state", "fc.weight", "exp_avg"
  std::string dtype{};              ///< name in safetensors, "F32"; also "C128"
  uint64_t bits = 0;                ///< of an element
  std::vector<uint64_t> shape{};
  uint64_t elements = 0;
  std::vector<DcpChunk> chunks{};
};

/// Any other value.
struct DcpValue {
  std::string name{};
  std::vector<std::string> path{};
  DcpItem item{};
};

struct DcpMetadata {
  std::vector<DcpTensor> tensors{};  ///< in the order of the file
  std::vector<DcpValue> values{};
};

/// Reads the metadata of PyTorch 2.4 and later.
///
/// \throws Error (data) if DCP did not write the pickle, for other names than those of DCP's classes, for a chunk
///         outside its tensor or without an item, for file names that are paths, and for transformed (compressed)
///         items.
[[nodiscard]] DcpMetadata read_dcp_metadata(std::string_view pickle, const Origin& origin);

}  // namespace accelerate::archive

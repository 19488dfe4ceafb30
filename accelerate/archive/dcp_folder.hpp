// SPDX-License-Identifier: Apache-2.0
// A folder of torch.distributed.checkpoint (DCP): .metadata and __0_0.distcp, ... Tensors are read whole or in part.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/archive/dcp_metadata.hpp"
#include "accelerate/archive/mapped_file.hpp"
#include "accelerate/archive/pickle_value.hpp"
#include "accelerate/archive/torch_file.hpp"

namespace accelerate::archive {

class DcpFolder {
 public:
  /// Reads .metadata alone. Other files are opened at the first read of one of their items.
  /// \throws Error (io) if .metadata cannot be opened; Error (data) as read_dcp_metadata() does.
  DcpFolder(std::filesystem::path folder, std::string_view operation);

  [[nodiscard]] const DcpMetadata& metadata() const { return metadata_; }
  [[nodiscard]] const Origin& origin() const { return origin_; }
  /// Returns the tensor of this name; null if there is none.
  [[nodiscard]] const DcpTensor* find(std::string_view name) const;

  /// Copies the elements from `begin` to `end` in row-major order. Only the items that contain them are read.
  ///
  /// \param tensor       From metadata().
  /// \param destination  Memory of the caller for `end - begin` elements; called after everything has been checked.
  /// \throws Error (usage) for a range outside the tensor; Error (io) for a missing file; Error (data) with file and
  ///         item for an item outside its file or of another shape or dtype, and for elements that are in no item or in
  ///         two.
  void read(const DcpTensor& tensor, uint64_t begin, uint64_t end, const std::function<char*()>& destination);
  /// Copies the whole tensor.
  void read(const DcpTensor& tensor, const std::function<char*()>& destination) {
    read(tensor, 0, tensor.elements, destination);
  }

  /// Checks the whole tensor as read() does, but reads no elements.
  void check(const DcpTensor& tensor);

  /// Elements that are consecutive in the whole tensor and in a file.
  struct MappedElements {
    uint64_t begin = 0, end = 0;
    std::string_view bytes{};  ///< in a mapped file; at any address, because DCP does not align its items
  };
  /// Returns the elements from `begin` to `end` without a copy. The files stay mapped while this object exists.
  ///
  /// \returns  Ascending pieces without gaps, or no list if an item does not store its elements in row-major order.
  /// \throws as read().
  [[nodiscard]] std::optional<std::vector<MappedElements>> mapped(const DcpTensor& tensor, uint64_t begin,
                                                                  uint64_t end);

  /// Returns a value that is not a tensor: a number, text, list, ...
  /// \throws Error (io) for a missing file; Error (data) for an item outside its file, or if torch.save did not write
  /// it.
  [[nodiscard]] PickleValue value(const DcpValue& value);

 private:
  struct Source;
  struct Run;
  struct Plan;

  [[nodiscard]] std::string_view bytes_of(const DcpItem& item, const std::string& name);
  [[nodiscard]] Origin origin_of(const DcpItem& item, const std::string& name) const;
  [[nodiscard]] Source open(const DcpTensor& tensor, const DcpChunk& chunk);
  [[nodiscard]] Plan plan(const DcpTensor& tensor, uint64_t begin, uint64_t end);

  std::filesystem::path folder_;
  Origin origin_;
  DcpMetadata metadata_;
  std::map<std::string, size_t, std::less<>> tensors_;  // indices by name
  std::map<std::string, std::unique_ptr<MappedFile>> files_;
};

}  // namespace accelerate::archive

// SPDX-License-Identifier: Apache-2.0
// Private: assembles tensors by their names in a checkpoint's manifest from the ranges in its files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "accelerate/archive/manifest.hpp"
#include "accelerate/base/error.hpp"
#include "accelerate/checkpoint/tensors.hpp"
#include "accelerate/state/saved_elements.hpp"

namespace accelerate::checkpoint {

class SavedRanges {
 public:
  SavedRanges(std::filesystem::path folder, const archive::Manifest& manifest, std::string_view operation);

  /// Returns the names with this prefix, in the order of the manifest: "model.0/".
  [[nodiscard]] std::vector<std::string> names(std::string_view prefix) const;

  /// Returns the whole tensor in its shape, which refers to the mapped file, if one range contains it. Otherwise it
  /// returns a placeholder on the meta device; read() has its elements.
  /// \throws as whole().
  [[nodiscard]] at::Tensor tensor(const std::string& name);
  /// Returns elements of a placeholder that this object returned; see state::ReadElements.
  [[nodiscard]] std::vector<state::SavedElements> read(const at::Tensor& placeholder, int64_t begin, int64_t end);

  /// Returns the whole tensor in its shape. If one range contains it, the result refers to the mapped file.
  ///
  /// \throws Error (io) for a missing file; Error (data) for missing elements, for ranges that differ from their file,
  ///         and for a name that is not in the manifest.
  [[nodiscard]] at::Tensor whole(const std::string& name);
  /// Returns the elements from `begin` to `end` in row-major order. Other ranges are not read. If ranges overlap, the
  /// first one is used.
  [[nodiscard]] at::Tensor elements(const std::string& name, int64_t begin, int64_t end);

 private:
  using Range = archive::ManifestRange;

  [[nodiscard]] const std::vector<Range>& ranges_of(const std::string& name) const;
  [[nodiscard]] std::vector<state::SavedElements> pieces(const std::string& name, int64_t begin, int64_t end);
  /// Returns the elements of a range from its file.
  [[nodiscard]] at::Tensor part(const Range& range);
  [[nodiscard]] const std::unordered_map<std::string, at::Tensor>& file(const std::string& name);
  [[nodiscard]] int64_t elements_of(const Range& range) const;
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const;

  std::filesystem::path folder_;
  std::string operation_;
  std::vector<std::string> order_;
  std::unordered_map<std::string, std::vector<Range>> ranges_;                        // sorted by first element
  std::unordered_map<const void*, std::pair<at::Tensor, std::string>> placeholders_;  // by TensorImpl, with names
  std::map<std::string, std::unordered_map<std::string, at::Tensor>> files_;
};

}  // namespace accelerate::checkpoint

// SPDX-License-Identifier: Apache-2.0
// ZIP files like those of torch.save: uncompressed and aligned members, ZIP64 for large sizes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/archive/origin.hpp"
#include "accelerate/archive/sink.hpp"

namespace accelerate::archive {

struct ZipMember {
  std::string name{};
  uint64_t begin = 0;  ///< position of its bytes in the file
  uint64_t size = 0;
  uint32_t crc32 = 0;

  bool operator==(const ZipMember&) const = default;
};

/// True if torch.save wrote the file before PyTorch 1.6, in a format that is not ZIP.
[[nodiscard]] bool is_torch_before_1_6(std::string_view file);

/// Returns the members of a ZIP file in directory order. Data is not read; see check_member().
///
/// \param left_out  Members with such names are skipped, including compressed ones. If null, none is skipped.
/// \throws Error (data) if the file is not a ZIP file, is truncated, or has members that are compressed, encrypted,
///         outside the file, overlapping or duplicate; for torch.save files before version 1.6 with the remedy.
[[nodiscard]] std::vector<ZipMember> read_zip(std::string_view file, const Origin& origin,
                                              bool (*left_out)(std::string_view name) = nullptr);

/// Returns a member's bytes.
[[nodiscard]] inline std::string_view member_bytes(std::string_view file, const ZipMember& member) {
  return file.substr(member.begin, member.size);
}

/// A CRC-32 of 0 counts as absent and is not checked.
/// \throws Error (data) if a member's bytes do not match its CRC-32.
void check_member(std::string_view file, const ZipMember& member, const Origin& origin);

class ZipWriter {
 public:
  /// \param sink       Must outlive this object.
  /// \param alignment  Alignment of the members' bytes in the file; PyTorch uses 64.
  explicit ZipWriter(Sink& sink, uint64_t alignment = 64) : sink_(sink), alignment_(alignment) {}

  void add(const std::string& name, std::string_view bytes);
  /// Writes the directory. No member can be added afterwards.
  void finish();

 private:
  Sink& sink_;
  uint64_t alignment_;
  struct Entry {
    ZipMember member;
    uint64_t header_begin;
  };
  std::vector<Entry> entries_;
};

}  // namespace accelerate::archive

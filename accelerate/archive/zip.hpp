// SPDX-License-Identifier: Apache-2.0
// ZIP files as torch.save writes them: members stored as they are, each of them aligned, ZIP64 where sizes want it.
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
  uint64_t begin = 0;  ///< of its bytes in the file
  uint64_t size = 0;
  uint32_t crc32 = 0;

  bool operator==(const ZipMember&) const = default;
};

/// Whether the file is of the format that torch.save wrote before PyTorch 1.6, which is not a ZIP file.
[[nodiscard]] bool is_torch_before_1_6(std::string_view file);

/// The members of a ZIP file, in the order of its directory.
///
/// Throws Error (data) for what is not a ZIP file, was cut, has members that are compressed, encrypted, lie outside of
/// the file or over one another, or names that come twice; for files that torch.save wrote before version 1.6 with the
/// remedy. Data is not read; check_member() does.
/// left_out   members of such names are passed over, compressed ones too: nobody reads them. Null: none
[[nodiscard]] std::vector<ZipMember> read_zip(std::string_view file, const Origin& origin,
                                              bool (*left_out)(std::string_view name) = nullptr);

/// A member's bytes.
[[nodiscard]] inline std::string_view bytes_of(std::string_view file, const ZipMember& member) {
  return file.substr(member.begin, member.size);
}

/// Throws Error (data) where a member's bytes are not those that its CRC-32 was made of.
void check_member(std::string_view file, const ZipMember& member, const Origin& origin);

class ZipWriter {
 public:
  /// sink        outlives it
  /// alignment   of the members' bytes in the file; 64 is PyTorch's
  explicit ZipWriter(Sink& sink, uint64_t alignment = 64) : sink_(sink), alignment_(alignment) {}

  void add(const std::string& name, std::string_view bytes);
  /// The directory. Nothing is added after it.
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

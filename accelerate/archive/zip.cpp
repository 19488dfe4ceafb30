// SPDX-License-Identifier: Apache-2.0
// Layout: PKWARE's APPNOTE.TXT 6.3.9, sections 4.3 and 4.5.3.
#include "accelerate/archive/zip.hpp"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <vector>

#include "accelerate/base/parallel_for.hpp"

namespace accelerate::archive {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kDirectorySignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr uint64_t kLocalBytes = 30, kDirectoryBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20;
constexpr uint32_t kInZip64Field32 = 0xffffffff;
constexpr uint16_t kInZip64Field16 = 0xffff;
constexpr uint16_t kZip64Field = 1;
constexpr uint16_t kPaddingField = 0x4246;  // "FB", as in PyTorch's writer

// Uses all processors, because zlib's CRC takes as long as the write.
uint32_t crc_of(std::string_view bytes) {
  constexpr size_t block = size_t{4} << 20;
  std::vector<uLong> sums(std::max<size_t>(1, (bytes.size() + block - 1) / block));
  const auto part = [&](size_t i) { return bytes.substr(i * block, block); };
  base::parallel_for(sums.size(), [&](size_t i) {
    sums[i] = crc32_z(0, reinterpret_cast<const Bytef*>(part(i).data()), part(i).size());
  });
  uLong sum = sums.front();
  for (size_t i = 1; i < sums.size(); ++i) sum = crc32_combine(sum, sums[i], static_cast<z_off_t>(part(i).size()));
  return static_cast<uint32_t>(sum);
}

// Reads the numbers of a record one after another.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes) {}
  template <typename Number>
  Number next() {
    Number number{};
    const std::string_view bytes = bytes_.substr(0, sizeof(number));
    std::memcpy(&number, bytes.data(), bytes.size());
    bytes_.remove_prefix(sizeof(number));
    return number;
  }
  void skip(size_t bytes) { bytes_.remove_prefix(bytes); }
  [[nodiscard]] size_t left() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
};

struct Directory {
  uint64_t begin = 0, size = 0, entries = 0;
};

class Reader {
 public:
  Reader(std::string_view file, const Origin& origin, bool (*left_out)(std::string_view))
      : file_(file), origin_(origin), left_out_(left_out) {}

  std::vector<ZipMember> members() {
    const Directory directory = find_directory();
    std::vector<ZipMember> members;
    uint64_t at = directory.begin;
    for (uint64_t i = 0; i < directory.entries; ++i) at = read_entry(at, members);
    if (at != directory.begin + directory.size) {
      origin_.broken("the {} entries of the directory end at byte {}, expected {}", directory.entries, at,
                     directory.begin + directory.size);
    }
    check_apart(members);
    return members;
  }

 private:
  // Returns the bytes at a position, or reports that the file is truncated.
  [[nodiscard]] std::string_view at(uint64_t begin, uint64_t size, std::string_view what) const {
    if (begin > file_.size() || size > file_.size() - begin) {
      origin_.broken("{} at byte {} has {} bytes, the file {}; it was cut", what, begin, size, file_.size());
    }
    return file_.substr(begin, size);
  }

  // Weights can contain the signature by chance: the record must name a directory that precedes it.
  [[nodiscard]] bool is_end(uint64_t place) const {
    const Directory directory = end_record(place);
    if (is_64(directory)) {
      return place >= kLocator64Bytes && file_.substr(place - kLocator64Bytes).starts_with("PK\x06\x07");
    }
    if (directory.begin + directory.size > place) return false;
    if (directory.entries == 0) return directory.begin == place;
    return file_.substr(directory.begin).starts_with("PK\x01\x02");
  }

  [[nodiscard]] uint64_t find_end() const {
    if (is_torch_before_1_6(file_)) {
      origin_.broken(
          "the file is of PyTorch's format before 1.6; load it in Python and save it again, with "
          "torch.save(torch.load(path), path)");
    }
    const std::string_view signature("PK\x05\x06");
    const uint64_t from = file_.size() > kEndBytes + kInZip64Field16 ? file_.size() - kEndBytes - kInZip64Field16 : 0;
    for (auto found = file_.rfind(signature); found != std::string_view::npos && found >= from;
         found = found == 0 ? std::string_view::npos : file_.rfind(signature, found - 1)) {
      if (found + kEndBytes <= file_.size() && is_end(found)) return found;
    }
    origin_.broken("{}", file_.starts_with("PK\x03\x04") ? "the file was cut: a ZIP file ends with its directory"
                                                         : "the file is not a ZIP file, as torch.save writes them");
  }

  [[nodiscard]] Directory end_record(uint64_t place) const {
    Fields fields(at(place, kEndBytes, "the end of the directory"));
    fields.skip(8);
    fields.next<uint16_t>();
    Directory directory{.entries = fields.next<uint16_t>()};
    directory.size = fields.next<uint32_t>();
    directory.begin = fields.next<uint32_t>();
    return directory;
  }
  static bool is_64(const Directory& directory) {
    return directory.entries == kInZip64Field16 || directory.size == kInZip64Field32 ||
           directory.begin == kInZip64Field32;
  }

  [[nodiscard]] Directory find_directory() const {
    const uint64_t end = find_end();
    Directory directory = end_record(end);
    if (is_64(directory)) directory = find_directory_64(end);
    if (directory.entries > directory.size / kDirectoryBytes) {
      origin_.broken("the directory has {} entries in {} bytes", directory.entries, directory.size);
    }
    static_cast<void>(at(directory.begin, directory.size, "the directory"));
    return directory;
  }

  [[nodiscard]] Directory find_directory_64(uint64_t end) const {
    Fields locator(at(end - kLocator64Bytes, kLocator64Bytes, "the ZIP64 locator"));
    locator.skip(8);
    Fields fields(at(locator.next<uint64_t>(), kEnd64Bytes, "the ZIP64 end of the directory"));
    if (fields.next<uint32_t>() != kEnd64Signature) origin_.broken("the ZIP64 end of the directory is missing");
    fields.skip(28);
    Directory directory{.entries = fields.next<uint64_t>()};
    directory.size = fields.next<uint64_t>();
    directory.begin = fields.next<uint64_t>();
    return directory;
  }

  // Returns the position of the next entry.
  uint64_t read_entry(uint64_t place, std::vector<ZipMember>& members) {
    Fields fields(at(place, kDirectoryBytes, "an entry of the directory"));
    if (fields.next<uint32_t>() != kDirectorySignature) {
      origin_.broken("the directory has something else than an entry at byte {}", place);
    }
    fields.skip(4);
    const auto flags = fields.next<uint16_t>();
    const auto method = fields.next<uint16_t>();
    fields.skip(4);
    ZipMember member{.crc32 = fields.next<uint32_t>()};
    uint64_t packed = fields.next<uint32_t>();
    member.size = fields.next<uint32_t>();
    const auto name_bytes = fields.next<uint16_t>();
    const auto extra_bytes = fields.next<uint16_t>();
    const auto comment_bytes = fields.next<uint16_t>();
    fields.skip(8);
    uint64_t header = fields.next<uint32_t>();
    member.name = at(place + kDirectoryBytes, name_bytes, "a member's name");
    const auto extra = at(place + kDirectoryBytes + name_bytes, extra_bytes, "a member's extra fields");
    take_zip64(extra, member, packed, header);
    const uint64_t next = place + kDirectoryBytes + name_bytes + extra_bytes + comment_bytes;
    if (!names_.insert(member.name).second)
      origin_.broken("the member {} appears twice", quote_for_terminal(member.name));
    if (left_out_ != nullptr && left_out_(member.name)) return next;
    if ((flags & 1) != 0) origin_.broken("the member {} is encrypted", quote_for_terminal(member.name));
    if (method != 0 || packed != member.size) {
      origin_.broken("the member {} is compressed; torch.save stores members as they are",
                     quote_for_terminal(member.name));
    }
    member.begin = begin_of(header, member);
    static_cast<void>(at(member.begin, member.size, fmt::format("the member {}", quote_for_terminal(member.name))));
    members.push_back(std::move(member));
    return next;
  }

  // Reads values above 32 bits, which are stored in this order.
  void take_zip64(std::string_view extra, ZipMember& member, uint64_t& packed, uint64_t& header) const {
    while (extra.size() >= 4) {
      Fields head(extra);
      const auto id = head.next<uint16_t>();
      const auto size = head.next<uint16_t>();
      if (size > extra.size() - 4) origin_.broken("the extra fields of {} are broken", quote_for_terminal(member.name));
      Fields fields(extra.substr(4, size));
      if (id == kZip64Field) {
        for (uint64_t* number : {&member.size, &packed, &header}) {
          if (*number == kInZip64Field32 && fields.left() >= sizeof(uint64_t)) *number = fields.next<uint64_t>();
        }
      }
      extra.remove_prefix(4 + size);
    }
  }

  [[nodiscard]] uint64_t begin_of(uint64_t header, const ZipMember& member) const {
    Fields fields(at(header, kLocalBytes, fmt::format("the header of {}", quote_for_terminal(member.name))));
    if (fields.next<uint32_t>() != kLocalSignature) {
      origin_.broken("the member {} has no header at byte {}", quote_for_terminal(member.name), header);
    }
    fields.skip(22);
    const auto name_bytes = fields.next<uint16_t>();
    const auto extra_bytes = fields.next<uint16_t>();
    if (at(header + kLocalBytes, name_bytes, "a member's name") != member.name) {
      origin_.broken("the directory and the header at byte {} call a member differently", header);
    }
    return header + kLocalBytes + name_bytes + extra_bytes;
  }

  void check_apart(std::vector<ZipMember> members) const {
    std::sort(members.begin(), members.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    for (size_t i = 1; i < members.size(); ++i) {
      if (members[i - 1].begin + members[i - 1].size > members[i].begin) {
        origin_.broken("the members {} and {} overlap", quote_for_terminal(members[i - 1].name),
                       quote_for_terminal(members[i].name));
      }
    }
  }

  std::string_view file_;
  const Origin& origin_;
  bool (*left_out_)(std::string_view);
  std::set<std::string> names_;
};

template <typename... Numbers>
std::string record(Numbers... numbers) {
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(&numbers), sizeof(numbers)), ...);
  return bytes;
}

uint32_t in_32(uint64_t number) { return number < kInZip64Field32 ? static_cast<uint32_t>(number) : kInZip64Field32; }
uint16_t in_16(uint64_t number) { return number < kInZip64Field16 ? static_cast<uint16_t>(number) : kInZip64Field16; }

// Version 2.0, or 4.5 with ZIP64. The date is 1 January 1980, so that equal members make equal files.
constexpr uint16_t kPlainVersion = 20, kZip64Version = 45, kMidnight = 0, kFirstDay = 0x21, kUtf8Names = 0x800,
                   kStored = 0;

}  // namespace

bool is_torch_before_1_6(std::string_view file) {
  // The pickle of torch.serialization.MAGIC_NUMBER, after the header of any protocol.
  constexpr std::string_view magic("\x8a\x0a\x6c\xfc\x9c\x46\xf9");
  return file.starts_with('\x80') && file.substr(0, 32).find(magic) != std::string_view::npos;
}

std::vector<ZipMember> read_zip(std::string_view file, const Origin& origin, bool (*left_out)(std::string_view name)) {
  return Reader(file, origin, left_out).members();
}

void check_member(std::string_view file, const ZipMember& member, const Origin& origin) {
  if (member.crc32 == 0) return;  // PyTorch omits it on request (set_crc32_options)
  const uint32_t now = crc_of(member_bytes(file, member));
  if (now == member.crc32) return;
  origin.broken("the member {} has checksum {:08x}, expected {:08x}: its bytes were changed",
                quote_for_terminal(member.name), now, member.crc32);
}

void ZipWriter::add(const std::string& name, std::string_view bytes) {
  const uint64_t header = sink_.written();
  const bool is_64 = bytes.size() >= kInZip64Field32;
  const std::string sizes_64 =
      is_64 ? record(kZip64Field, uint16_t{16}, uint64_t{bytes.size()}, uint64_t{bytes.size()}) : "";
  const uint64_t before = header + kLocalBytes + name.size() + sizes_64.size() + 4;
  const auto padding = static_cast<uint16_t>((alignment_ - before % alignment_) % alignment_);
  const std::string extra = sizes_64 + record(kPaddingField, padding) + std::string(padding, 'Z');
  const uint32_t crc = crc_of(bytes);
  const uint32_t size = is_64 ? kInZip64Field32 : static_cast<uint32_t>(bytes.size());
  sink_.write(record(kLocalSignature, is_64 ? kZip64Version : kPlainVersion, kUtf8Names, kStored, kMidnight, kFirstDay,
                     crc, size, size, static_cast<uint16_t>(name.size()), static_cast<uint16_t>(extra.size())) +
              name + extra);
  entries_.push_back({{.name = name, .begin = sink_.written(), .size = bytes.size(), .crc32 = crc}, header});
  sink_.write(bytes);
}

void ZipWriter::finish() {
  const uint64_t begin = sink_.written();
  for (const auto& [member, header] : entries_) {
    std::string numbers;
    if (member.size >= kInZip64Field32) numbers += record(uint64_t{member.size}, uint64_t{member.size});
    if (header >= kInZip64Field32) numbers += record(uint64_t{header});
    const bool is_64 = !numbers.empty();
    const std::string extra = is_64 ? record(kZip64Field, static_cast<uint16_t>(numbers.size())) + numbers : "";
    const uint16_t version = is_64 ? kZip64Version : kPlainVersion;
    sink_.write(record(kDirectorySignature, version, version, kUtf8Names, kStored, kMidnight, kFirstDay, member.crc32,
                       in_32(member.size), in_32(member.size), static_cast<uint16_t>(member.name.size()),
                       static_cast<uint16_t>(extra.size()), uint16_t{0}, uint16_t{0}, uint16_t{0}, uint32_t{0},
                       in_32(header)) +
                member.name + extra);
  }
  const uint64_t size = sink_.written() - begin;
  const uint64_t count = entries_.size();
  if (in_16(count) == kInZip64Field16 || in_32(size) == kInZip64Field32 || in_32(begin) == kInZip64Field32) {
    const uint64_t end_64 = sink_.written();
    sink_.write(record(kEnd64Signature, uint64_t{kEnd64Bytes - 12}, kZip64Version, kZip64Version, uint32_t{0},
                       uint32_t{0}, count, count, size, begin));
    sink_.write(record(kLocator64Signature, uint32_t{0}, end_64, uint32_t{1}));
  }
  sink_.write(record(kEndSignature, uint16_t{0}, uint16_t{0}, in_16(count), in_16(count), in_32(size), in_32(begin),
                     uint16_t{0}));
}

}  // namespace accelerate::archive

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/zip.hpp"

#include <doctest/doctest.h>

#include <cstring>

using namespace accelerate::archive;

namespace {

const Origin origin{.path = "f", .operation = "load"};

std::string two_members() {
  StringSink sink;
  ZipWriter zip(sink);
  zip.add("top/data.pkl", "pickle");
  zip.add("top/data/0", std::string(100, 'x'));
  zip.finish();
  return sink.text();
}

std::string refusal(const std::string& file) {
  try {
    for (const auto& member : read_zip(file, origin)) check_member(file, member, origin);
  } catch (const accelerate::Error& error) {
    CHECK(error.kind() == accelerate::ErrorKind::data);
    return error.what();
  }
  return "";
}

// Overwrites the bytes at an offset with a number.
template <typename Number>
std::string changed(std::string file, size_t at, Number number) {
  std::memcpy(file.data() + at, &number, sizeof(number));
  return file;
}

}  // namespace

TEST_CASE("written members are read in order, each at a multiple of 64 bytes") {
  const std::string file = two_members();
  const auto members = read_zip(file, origin);
  REQUIRE(members.size() == 2);
  CHECK(members[0].name == "top/data.pkl");
  CHECK(member_bytes(file, members[0]) == "pickle");
  CHECK(members[1].name == "top/data/0");
  CHECK(member_bytes(file, members[1]) == std::string(100, 'x'));
  for (const auto& member : members) CHECK(member.begin % 64 == 0);
  CHECK(refusal(file).empty());
  StringSink none;
  ZipWriter(none).finish();
  CHECK(read_zip(none.text(), origin).empty());
}

TEST_CASE("a large member's checksum, computed in parts, equals zlib's of the whole") {
  std::string bytes((size_t{9} << 20) + 5, ' ');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>((i * 31 + i / 4096) % 256);
  StringSink sink;
  ZipWriter zip(sink);
  zip.add("large", bytes);
  zip.finish();
  CHECK(read_zip(sink.text(), origin).front().crc32 == 0x1e80844);  // by Python's zlib.crc32
}

TEST_CASE("more members than 16 bits count are written and read by ZIP64") {
  StringSink sink;
  ZipWriter zip(sink, 1);
  for (int i = 0; i < 70'000; ++i) zip.add(std::to_string(i), "x");
  zip.finish();
  const auto members = read_zip(sink.text(), origin);
  CHECK(members.size() == 70'000);
  CHECK(members.back().name == "69999");
}

TEST_CASE("a file that is cut anywhere, or has a changed directory byte, is refused or reads unchanged") {
  const std::string file = two_members();
  const auto whole = read_zip(file, origin);
  for (size_t size = 0; size < file.size(); ++size) CHECK_FALSE(refusal(file.substr(0, size)).empty());
  for (size_t at = file.find("PK\x01\x02"); at < file.size(); ++at) {
    for (const int bit : {1, 2, 4, 8, 16, 32, 64, 128}) {
      std::string flipped = file;
      flipped[at] = static_cast<char>(flipped[at] ^ bit);
      if (refusal(flipped).empty()) CHECK(read_zip(flipped, origin) == whole);
    }
  }
}

TEST_CASE("the errors for no ZIP file, an old format, a cut and a change differ") {
  const std::string file = two_members();
  CHECK(refusal("") == "load: f: the file is not a ZIP file, as torch.save writes them");
  CHECK(refusal(file.substr(0, 200)) == "load: f: the file was cut: a ZIP file ends with its directory");
  CHECK(refusal("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9") ==
        "load: f: the file is of PyTorch's format before 1.6; load it in Python and save it again, with "
        "torch.save(torch.load(path), path)");
  const std::string protocol_4("\x80\x04\x95\x0d\0\0\0\0\0\0\0\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20", 19);
  CHECK(is_torch_before_1_6(protocol_4));
  CHECK_FALSE(is_torch_before_1_6(file));
  std::string flipped = file;
  flipped[read_zip(file, origin)[1].begin + 5] = 'y';
  CHECK(refusal(flipped).starts_with("load: f: the member 'top/data/0' has checksum "));
}

TEST_CASE("weights may contain the end signature of ZIP: in complete, cut and older files") {
  const std::string signature = "PK\x05\x06";
  const std::string before_1_6 = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9";
  for (const char after : {'\0', '\x01', '\x7f', '\xff'}) {
    const std::string weights = std::string(50, 'x') + signature + std::string(200, after);
    StringSink sink;
    ZipWriter zip(sink);
    zip.add("top/data.pkl", "pickle");
    zip.add("top/data/0", weights);
    zip.finish();
    const std::string file = sink.text();
    const auto members = read_zip(file, origin);
    REQUIRE(members.size() == 2);
    CHECK(member_bytes(file, members[1]) == weights);
    CHECK(refusal(file + signature + std::string(200, after)).empty());  // bytes after the end are ignored
    CHECK(refusal(file.substr(0, members[1].begin + 100)) ==
          "load: f: the file was cut: a ZIP file ends with its directory");
    CHECK(refusal(before_1_6 + weights) ==
          "load: f: the file is of PyTorch's format before 1.6; load it in Python and save it again, with "
          "torch.save(torch.load(path), path)");
  }
}

TEST_CASE("inconsistent directories are refused: compressed, encrypted, outside, overlapping, duplicate") {
  const std::string file = two_members();
  const size_t first = file.find("PK\x01\x02");
  const size_t second = file.find("PK\x01\x02", first + 4);
  CHECK(refusal(changed(file, first + 8, uint16_t{1})) == "load: f: the member 'top/data.pkl' is encrypted");
  CHECK(refusal(changed(file, first + 10, uint16_t{8})) ==
        "load: f: the member 'top/data.pkl' is compressed; torch.save stores members as they are");
  const auto is_first = [](std::string_view name) { return name == "top/data.pkl"; };
  const auto others = read_zip(changed(file, first + 10, uint16_t{8}), origin, is_first);
  REQUIRE(others.size() == 1);
  CHECK(others[0].name == "top/data/0");
  CHECK(refusal(changed(file, second + 42, uint32_t{0})) ==
        "load: f: the directory and the header at byte 0 call a member differently");
  CHECK(refusal(changed(file, second + 42, uint32_t{7})) == "load: f: the member 'top/data/0' has no header at byte 7");
  const auto large = changed(changed(file, second + 20, uint32_t{9999}), second + 24, uint32_t{9999});
  CHECK(refusal(large) == "load: f: the member 'top/data/0' at byte 128 has 9999 bytes, the file 364; it was cut");
  StringSink twice;
  ZipWriter zip(twice);
  zip.add("a", "1");
  zip.add("a", "2");
  zip.finish();
  CHECK(refusal(twice.text()) == "load: f: the member 'a' appears twice");
}

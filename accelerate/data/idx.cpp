// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/idx.hpp"

#include <ATen/ops/from_blob.h>
#include <fmt/ranges.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "accelerate/base/error.hpp"

namespace accelerate::data {
namespace {

constexpr std::string_view operation = "read_idx";

/// A file that zlib reads, decompressed on the way where it is gzip.
class GzipFile {
 public:
  explicit GzipFile(const std::filesystem::path& path) : path_(path), file_(gzopen(path.c_str(), "rb"), &gzclose) {
    if (!file_)
      base::fail(ErrorKind::io, {}, operation, "{} cannot be opened: {}", path.string(), std::strerror(errno));
    gzbuffer(file_.get(), 1 << 17);
    // gzdirect before the first read looks at the first two bytes.
    if (path.extension() == ".gz" && gzdirect(file_.get()) == 1)
      base::fail(ErrorKind::data, {}, operation, "{} is not gzip: expected the bytes 1f 8b at its start, found {}",
                 path.string(), first_bytes());
  }

  /// Up to `wanted` bytes appended to `bytes`; fewer at the end of the file.
  void append(std::vector<uint8_t>& bytes, uint64_t wanted) {
    constexpr uint64_t piece = 8 << 20;  // grows with what is really there, whatever a header claims
    while (wanted > 0) {
      const size_t before = bytes.size();
      const auto ask = static_cast<unsigned>(std::min(wanted, piece));
      bytes.resize(before + ask);
      const int got = gzread(file_.get(), bytes.data() + before, ask);
      bytes.resize(before + static_cast<size_t>(std::max(got, 0)));
      check();
      if (got <= 0) return;
      wanted -= static_cast<uint64_t>(got);
    }
  }

 private:
  void check() const {
    int code = Z_OK;
    const char* text = gzerror(file_.get(), &code);
    if (code == Z_OK || code == Z_STREAM_END) return;
    if (code == Z_ERRNO)
      base::fail(ErrorKind::io, {}, operation, "{} cannot be read: {}", path_.string(), std::strerror(errno));
    if (code == Z_BUF_ERROR)
      base::fail(ErrorKind::data, {}, operation,
                 "{} is cut off: expected the end of the gzip stream, found the end of "
                 "the file",
                 path_.string());
    base::fail(ErrorKind::data, {}, operation, "{} is damaged: expected a gzip stream, zlib found {}", path_.string(),
               text);
  }

  [[nodiscard]] std::string first_bytes() {
    std::array<uint8_t, 2> bytes{};
    const int got = gzread(file_.get(), bytes.data(), 2);
    return got == 2 ? fmt::format("{:02x} {:02x}", bytes[0], bytes[1]) : fmt::format("{} bytes", std::max(got, 0));
  }

  const std::filesystem::path& path_;
  std::unique_ptr<gzFile_s, decltype(&gzclose)> file_;
};

uint32_t big_endian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

void check_header(const std::filesystem::path& path, const std::vector<uint8_t>& bytes, int64_t dimensions) {
  const size_t expected = 4 + 4 * static_cast<size_t>(dimensions);
  if (bytes.size() < expected)
    base::fail(ErrorKind::data, {}, operation, "{} is cut off: expected a header of {} bytes, found {} bytes",
               path.string(), expected, bytes.size());
  const uint32_t magic = 0x00000800U | static_cast<uint32_t>(dimensions);
  if (big_endian(bytes.data()) != magic)
    base::fail(ErrorKind::data, {}, operation,
               "{} has the wrong magic: expected 0x{:08x} (bytes, {} dimensions), "
               "found 0x{:08x}",
               path.string(), magic, dimensions, big_endian(bytes.data()));
}

}  // namespace

at::Tensor read_idx(const std::filesystem::path& path, int64_t dimensions) {
  GzipFile file(path);
  auto bytes = std::make_shared<std::vector<uint8_t>>();
  const size_t header = 4 + 4 * static_cast<size_t>(dimensions);
  file.append(*bytes, header);
  check_header(path, *bytes, dimensions);

  std::vector<int64_t> shape;
  uint64_t expected = 1;
  bool overflow = false;
  for (size_t i = 4; i < header; i += 4) {
    shape.push_back(big_endian(bytes->data() + i));
    overflow |= __builtin_mul_overflow(expected, static_cast<uint64_t>(shape.back()), &expected);
  }
  if (overflow || expected > uint64_t{1} << 40)
    base::fail(ErrorKind::data, {}, operation, "{} is damaged: its header says [{}], more than any such file holds",
               path.string(), fmt::join(shape, ", "));

  file.append(*bytes, expected + 1);  // one more, to see that the file ends there
  const uint64_t found = bytes->size() - header;
  if (found != expected)
    base::fail(ErrorKind::data, {}, operation, "{} is {}: expected {} bytes after the header [{}], found {}",
               path.string(), found < expected ? "cut off" : "too long", expected, fmt::join(shape, ", "),
               found < expected ? fmt::to_string(found) : "more");
  return at::from_blob(
      bytes->data() + header, shape, [bytes](void*) {}, at::TensorOptions().dtype(at::kByte));
}

}  // namespace accelerate::data

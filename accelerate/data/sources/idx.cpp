// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/idx.hpp"

#include <ATen/ops/from_blob.h>
#include <fmt/ranges.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "accelerate/base/error.hpp"

namespace accelerate::data {
namespace {

constexpr std::string_view kIdxOperation = "read_idx";

}  // namespace

/// Reads a file with zlib, which decompresses gzip files.
class GzipFile {
 public:
  explicit GzipFile(const std::filesystem::path& path) : path_(path), file_(gzopen(path.c_str(), "rb"), &gzclose) {
    if (!file_)
      base::fail(ErrorKind::io, {}, kIdxOperation, "{} cannot be opened: {}", path.string(), std::strerror(errno));
    gzbuffer(file_.get(), 1 << 17);
    // Before the first read, gzdirect examines the first two bytes.
    if (path.extension() == ".gz" && gzdirect(file_.get()) == 1)
      base::fail(ErrorKind::data, {}, kIdxOperation, "{} is not gzip: expected the bytes 1f 8b at its start, found {}",
                 path.string(), first_bytes());
  }

  /// Maximum number of bytes that a file of this length can contain: deflate compresses at most 1032 to 1.
  [[nodiscard]] uint64_t max_bytes() const {
    std::error_code unknown;
    const uint64_t size = std::filesystem::file_size(path_, unknown);
    if (unknown) return std::numeric_limits<uint64_t>::max();
    return packed() ? size * 1032 : size;
  }
  [[nodiscard]] bool packed() const { return gzdirect(file_.get()) == 0; }

  /// Appends up to `wanted` bytes; fewer at the end of the file or of its readable part.
  void append(std::vector<uint8_t>& bytes, uint64_t wanted, OnError on_error = OnError::fail) {
    constexpr uint64_t piece = 8 << 20;  // memory grows with the actual data, not with the size in the header
    while (wanted > 0) {
      const size_t before = bytes.size();
      const auto ask = static_cast<unsigned>(std::min(wanted, piece));
      bytes.resize(before + ask);
      const int got = gzread(file_.get(), bytes.data() + before, ask);
      bytes.resize(before + static_cast<size_t>(std::max(got, 0)));
      check(on_error);
      if (got <= 0) return;
      wanted -= static_cast<uint64_t>(got);
    }
  }

 private:
  void check(OnError on_error) const {
    int code = Z_OK;
    const char* text = gzerror(file_.get(), &code);
    if (code == Z_OK || code == Z_STREAM_END) return;
    if (code == Z_ERRNO)
      base::fail(ErrorKind::io, {}, kIdxOperation, "{} cannot be read: {}", path_.string(), std::strerror(errno));
    if (code == Z_BUF_ERROR && on_error == OnError::skip) return;
    if (code == Z_BUF_ERROR)
      base::fail(ErrorKind::data, {}, kIdxOperation,
                 "{} is cut off: expected the end of the gzip stream, found the end of "
                 "the file",
                 path_.string());
    base::fail(ErrorKind::data, {}, kIdxOperation, "{} is damaged: expected a gzip stream, zlib found {}",
               path_.string(), text);
  }

  [[nodiscard]] std::string first_bytes() {
    std::array<uint8_t, 2> bytes{};
    const int got = gzread(file_.get(), bytes.data(), 2);
    return got == 2 ? fmt::format("{:02x} {:02x}", bytes[0], bytes[1]) : fmt::format("{} bytes", std::max(got, 0));
  }

  const std::filesystem::path path_;
  std::unique_ptr<gzFile_s, decltype(&gzclose)> file_;
};

namespace {

uint32_t big_endian(const uint8_t* bytes) {
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | uint32_t{bytes[3]};
}

void check_header(const std::filesystem::path& path, const std::vector<uint8_t>& bytes, int64_t dimensions) {
  const size_t expected = 4 + 4 * static_cast<size_t>(dimensions);
  if (bytes.size() < expected)
    base::fail(ErrorKind::data, {}, kIdxOperation, "{} is cut off: expected a header of {} bytes, found {} bytes",
               path.string(), expected, bytes.size());
  const uint32_t magic = 0x00000800U | static_cast<uint32_t>(dimensions);
  if (big_endian(bytes.data()) != magic)
    base::fail(ErrorKind::data, {}, kIdxOperation,
               "{} has the wrong magic: expected 0x{:08x} (bytes, {} dimensions), "
               "found 0x{:08x}",
               path.string(), magic, dimensions, big_endian(bytes.data()));
}

}  // namespace

struct IdxFile::Impl {
  std::filesystem::path path;
  OnError on_error;
  GzipFile file;
  std::vector<int64_t> shape{};
  uint64_t size = 1;  // bytes after the header
  std::string cut_off{};

  Impl(const std::filesystem::path& from, int64_t dimensions, OnError of_rows)
      : path(from), on_error(of_rows), file(from) {
    std::vector<uint8_t> header;
    file.append(header, 4 + 4 * static_cast<size_t>(dimensions), on_error);
    check_header(path, header, dimensions);
    bool overflow = false;
    for (size_t i = 4; i < header.size(); i += 4) {
      shape.push_back(big_endian(header.data() + i));
      overflow |= __builtin_mul_overflow(size, static_cast<uint64_t>(shape.back()), &size);
    }
    if (overflow || size > uint64_t{1} << 40)
      base::fail(ErrorKind::data, {}, kIdxOperation,
                 "{} is damaged: its header has [{}], more than any such file contains", path.string(),
                 fmt::join(shape, ", "));
    const uint64_t most = file.max_bytes() - header.size();
    if (most < size && on_error == OnError::fail)
      refuse_length("cut off", fmt::format("{}{}", most, file.packed() ? " at most" : ""));
  }

  [[nodiscard]] std::string wrong_length(std::string_view verdict, std::string_view found) const {
    return fmt::format("{} is {}: expected {} bytes after the header [{}], found {}", path.string(), verdict, size,
                       fmt::join(shape, ", "), found);
  }
  [[noreturn]] void refuse_length(std::string_view verdict, std::string_view found) const {
    base::fail(ErrorKind::data, {}, kIdxOperation, "{}", wrong_length(verdict, found));
  }

  /// \param bytes  Number of bytes that were read of `rows` rows.
  /// \returns the number of complete rows. \throws if rows are missing and on_error is fail.
  int64_t whole_rows(uint64_t bytes, int64_t rows) {
    if (bytes >= row_bytes() * static_cast<uint64_t>(rows)) return rows;
    if (on_error == OnError::fail) refuse_length("cut off", fmt::to_string(bytes));
    cut_off = wrong_length("cut off", fmt::to_string(bytes));
    return static_cast<int64_t>(bytes / row_bytes());
  }
  [[nodiscard]] uint64_t row_bytes() const { return shape[0] == 0 ? 0 : size / static_cast<uint64_t>(shape[0]); }
};

IdxFile::IdxFile(const std::filesystem::path& path, int64_t dimensions, OnError on_error)
    : impl_(std::make_unique<Impl>(path, dimensions, on_error)) {}
IdxFile::~IdxFile() = default;

const std::filesystem::path& IdxFile::path() const { return impl_->path; }
const std::vector<int64_t>& IdxFile::shape() const { return impl_->shape; }
const std::string& IdxFile::cut_off() const { return impl_->cut_off; }

at::Tensor IdxFile::read(int64_t max_rows) {
  auto bytes = std::make_shared<std::vector<uint8_t>>();
  auto shape = impl_->shape;
  const bool all = max_rows >= shape[0];
  shape[0] = std::min(shape[0], max_rows);
  // Requests one more byte than the whole file should have, to check that the file ends there.
  const uint64_t wanted = all ? impl_->size + 1 : impl_->row_bytes() * static_cast<uint64_t>(shape[0]);
  impl_->file.append(*bytes, wanted, impl_->on_error);
  if (bytes->size() > impl_->size) impl_->refuse_length("too long", "more");
  shape[0] = impl_->whole_rows(bytes->size(), shape[0]);
  return at::from_blob(
      bytes->data(), shape, [bytes](void*) {}, at::TensorOptions().dtype(at::kByte));
}

at::Tensor read_idx(const std::filesystem::path& path, int64_t dimensions) { return IdxFile(path, dimensions).read(); }

}  // namespace accelerate::data

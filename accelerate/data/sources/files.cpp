// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/files.hpp"

#include <ATen/ops/from_blob.h>
#include <c10/core/ScalarType.h>
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "accelerate/base/error.hpp"
#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::data {
namespace {

struct OpenFile {
  base::FileDescriptor descriptor;
  uint64_t size = 0;
};

OpenFile open_file(const std::filesystem::path& path, std::string_view operation) {
  // O_NONBLOCK, because opening a pipe would wait for its writer.
  OpenFile file{.descriptor = base::FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK))};
  struct stat about {};
  if (!file.descriptor || ::fstat(file.descriptor.get(), &about) != 0)
    base::fail(ErrorKind::io, {}, operation, "{} cannot be opened: {}", path.string(), std::strerror(errno));
  if (!S_ISREG(about.st_mode))
    base::fail(ErrorKind::io, {}, operation, "{} is {}: expected a file", path.string(),
               S_ISDIR(about.st_mode) ? "a folder" : "no regular file");
  file.size = static_cast<uint64_t>(about.st_size);
  return file;
}

}  // namespace

at::Tensor tensor_in(const std::shared_ptr<MappedFile>& file, uint64_t offset, at::IntArrayRef shape,
                     at::ScalarType dtype) {
  return at::from_blob(
      file->data() + offset, shape, [file](void*) {}, at::TensorOptions().dtype(dtype));
}

std::vector<uint8_t> read_file(const std::filesystem::path& path, std::string_view operation) {
  const OpenFile file = open_file(path, operation);
  std::vector<uint8_t> bytes(file.size);
  size_t have = 0;
  while (have < bytes.size()) {
    const auto got = ::read(file.descriptor.get(), bytes.data() + have, bytes.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) base::fail(ErrorKind::io, {}, operation, "{} cannot be read: {}", path.string(), std::strerror(errno));
    if (got == 0) break;
    have += static_cast<size_t>(got);
  }
  bytes.resize(have);  // another process may have truncated the file
  return bytes;
}

std::string dtype_name(at::ScalarType dtype) {
  return std::string(c10::getDtypeNames(dtype).first);  // a std::string_view in LibTorch 2.15
}

std::optional<uint64_t> array_bytes(at::IntArrayRef shape, at::ScalarType dtype) {
  uint64_t size = c10::elementSize(dtype);
  bool overflow = false;
  bool empty = false;
  for (const int64_t n : shape) {
    empty |= n == 0;
    overflow |= n < 0 || __builtin_mul_overflow(size, static_cast<uint64_t>(std::max<int64_t>(n, 1)), &size);
  }
  if (overflow || size > uint64_t{1} << 60) return std::nullopt;
  return empty ? 0 : size;
}

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::archive {

MappedFile::MappedFile(std::filesystem::path path, std::string_view operation) : path_(std::move(path)) {
  // Non-blocking, because opening a pipe would wait for its writer.
  const base::FileDescriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat about {};
  if (!file || ::fstat(file.get(), &about) != 0) {
    base::fail(ErrorKind::io, {}, operation, "{} cannot be opened: {}", path_.string(), std::strerror(errno));
  }
  if (!S_ISREG(about.st_mode)) {
    base::fail(ErrorKind::io, {}, operation, "{} is {}: expected a file", path_.string(),
               S_ISDIR(about.st_mode) ? "a folder" : "no regular file");
  }
  if (about.st_size == 0) return;
  const auto size = static_cast<uint64_t>(about.st_size);
  // Private and writable: a tensor may be modified in place, and pages are shared until then.
  void* const data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, file.get(), 0);
  if (data == MAP_FAILED) {
    base::fail(ErrorKind::io, {}, operation, "{} cannot be mapped: {}", path_.string(), std::strerror(errno));
  }
  data_ = data;
  size_ = size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace accelerate::archive

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/sink.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "accelerate/base/error.hpp"

namespace accelerate::archive {

FileSink::FileSink(std::filesystem::path path, std::string_view operation)
    : path_(std::move(path)), operation_(operation) {
  file_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!file_) fail("cannot be made");
}

void FileSink::write(std::string_view bytes) {
  constexpr size_t most = size_t{256} << 10;  // small enough that the data is still in the cache for the checksum
  while (!bytes.empty()) {
    const ssize_t taken = ::write(file_.get(), bytes.data(), std::min(bytes.size(), most));
    if (taken < 0 && errno == EINTR) continue;
    if (taken < 0) fail("cannot be written");
    checksum_.add(bytes.substr(0, static_cast<size_t>(taken)));
    written_ += static_cast<uint64_t>(taken);
    bytes.remove_prefix(static_cast<size_t>(taken));
  }
}

void FileSink::finish(bool durable) {
  if (durable && ::fsync(file_.get()) != 0) fail("cannot be brought to the disk");
  if (::close(file_.release()) != 0) fail("cannot be closed");
}

void FileSink::fail(std::string_view what) const {
  base::fail(ErrorKind::io, {}, operation_, "{} {}: {} ({} bytes were written)", path_.string(), what,
             std::strerror(errno), written_);
}

}  // namespace accelerate::archive

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/append_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "accelerate/base/error.hpp"

namespace accelerate::tracking {
namespace {

/// Returns the number of written bytes. If it is less than requested, errno has the reason.
size_t write_all(int file, std::string_view bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t taken = ::write(file, bytes.data() + done, bytes.size() - done);
    if (taken < 0 && errno == EINTR) continue;
    if (taken < 0) break;
    done += static_cast<size_t>(taken);
  }
  return done;
}

}  // namespace

AppendFile::AppendFile(std::filesystem::path path) : path_(std::move(path)) { open(); }

void AppendFile::open() {
  file_.reset(::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file_) fail("cannot be opened");
}

void AppendFile::append(std::string_view bytes) {
  const size_t done = write_all(file_.get(), bytes);
  if (done == bytes.size()) return;
  const int cause = errno;
  // A partial record would make later records unreadable.
  struct stat now {};
  if (done > 0 && ::fstat(file_.get(), &now) == 0)
    (void)!::ftruncate(file_.get(), now.st_size - static_cast<off_t>(done));
  errno = cause;
  fail("cannot be written");
}

std::string AppendFile::read() const {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t taken = ::pread(file_.get(), buffer, sizeof(buffer), static_cast<off_t>(text.size()));
    if (taken < 0 && errno == EINTR) continue;
    if (taken < 0) fail("cannot be read");
    if (taken == 0) return text;
    text.append(buffer, static_cast<size_t>(taken));
  }
}

void AppendFile::replace(std::string_view text) {
  const std::string beside = path_.string() + ".new";
  const base::FileDescriptor made(::open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  const bool whole = made && write_all(made.get(), text) == text.size();
  if (!whole || ::rename(beside.c_str(), path_.c_str()) != 0) {
    const int cause = errno;
    ::unlink(beside.c_str());
    errno = cause;
    fail("cannot be rewritten");
  }
  open();
}

bool AppendFile::ends_within_line() const {
  struct stat now {};
  char last = '\n';
  if (::fstat(file_.get(), &now) != 0 || now.st_size == 0) return false;
  return ::pread(file_.get(), &last, 1, now.st_size - 1) == 1 && last != '\n';
}

void AppendFile::fail(std::string_view what) const {
  base::fail(ErrorKind::io, {}, "tracking", "{} {}: {}", path_.string(), what, std::strerror(errno));
}

}  // namespace accelerate::tracking

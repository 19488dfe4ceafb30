// SPDX-License-Identifier: Apache-2.0
// RAII owner of a file descriptor.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace accelerate::base {

/// Owns a descriptor and closes it without changing errno, so that a later throw can still report the cause. -1 means
/// empty.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) noexcept : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~FileDescriptor() { reset(); }

  [[nodiscard]] int get() const noexcept { return number_; }
  explicit operator bool() const noexcept { return number_ >= 0; }

  /// Gives up ownership: the caller closes the descriptor.
  [[nodiscard]] int release() noexcept { return std::exchange(number_, -1); }

  void reset(int number = -1) noexcept {
    const int cause = errno;
    const int old = std::exchange(number_, number);
    if (old >= 0) ::close(old);
    errno = cause;
  }

 private:
  int number_ = -1;
};

}  // namespace accelerate::base

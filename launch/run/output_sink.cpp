// SPDX-License-Identifier: Apache-2.0
#include "launch/run/output_sink.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

namespace accelerate::launch {
namespace {

/// O_NONBLOCK belongs to the open file description, which the shell and other programs share. This opens another one.
base::FileDescriptor reopen_nonblocking(int fd, mode_t mode) {
  if (!S_ISFIFO(mode) && isatty(fd) == 0) return {};
  const auto path = fmt::format("/proc/self/fd/{}", fd);
  return base::FileDescriptor(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

Sink::Sink(int fd, std::string name) : fd_(fd), name_(std::move(name)) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return;
  if (S_ISREG(status.st_mode)) kind_ = Kind::file;
  if (S_ISSOCK(status.st_mode)) kind_ = Kind::socket;
  own_ = reopen_nonblocking(fd, status.st_mode);
}

ssize_t Sink::write_some(std::string_view bytes) const {
  if (own_ || kind_ == Kind::file) return write(fd(), bytes.data(), bytes.size());
  if (kind_ == Kind::socket) return send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
  // This terminal or pipe could not be reopened, so poll() is needed to learn whether a write would block.
  pollfd ready{.fd = fd_, .events = POLLOUT, .revents = 0};
  if (poll(&ready, 1, 0) == 0) {
    errno = EAGAIN;
    return -1;
  }
  return write(fd_, bytes.data(), std::min<size_t>(bytes.size(), PIPE_BUF));
}

void Sink::add(std::string_view bytes) {
  if (abandoned_) return;
  if (drops_ && waiting() + bytes.size() > kLimitBytes) {
    dropped_ += bytes.size();
    return;
  }
  queue_ += bytes;
  flush();
}

void Sink::flush() {
  while (!empty()) {
    const ssize_t n = write_some(std::string_view(queue_).substr(written_));
    if (n > 0) {
      written_ += static_cast<size_t>(n);
    } else if (n == 0 || errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      abandoned_ = errno == EPIPE;
      if (!abandoned_) failed_ = errno;  // the disk may have space again, so later output is still written
      written_ = queue_.size();
    }
  }
  if (empty() || written_ > kLimitBytes / 2) queue_.erase(0, std::exchange(written_, 0));
}

std::optional<std::string> Sink::take_failure() {
  if (failed_ == 0 || std::exchange(reported_, true)) return std::nullopt;
  return fmt::format(
      "accelerate_launch: {} cannot be written: {}; the ranks continue, and their output to it is lost\n", name_,
      std::strerror(failed_));
}

std::optional<std::string> Sink::unread() const {
  const size_t bytes = dropped_ + waiting();
  if (bytes == 0) return std::nullopt;
  return fmt::format("accelerate_launch: the last {} bytes for {} are lost: no process read them\n", bytes, name_);
}

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// The launcher's stdout or stderr, written without blocking on its reader.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::launch {

class Sink {
 public:
  /// Maximum number of bytes that wait for a slow reader before the workers have to wait.
  static constexpr size_t kLimitBytes = 8 << 20;

  /// \param fd    Remains owned by the caller, with unchanged flags for processes that share it. Pipes and terminals
  ///              are reopened, because only a separate open file description can be made non-blocking.
  /// \param name  Name in messages: "stdout".
  Sink(int fd, std::string name);

  /// Writes as many bytes as possible without blocking and queues the rest.
  void add(std::string_view bytes);
  /// Writes queued bytes without blocking.
  void flush();

  /// Descriptor to poll with POLLOUT while not empty().
  [[nodiscard]] int fd() const noexcept { return own_ ? own_.get() : fd_; }
  [[nodiscard]] bool empty() const noexcept { return waiting() == 0; }
  [[nodiscard]] bool full() const noexcept { return waiting() >= kLimitBytes; }
  /// True if the reader has closed the pipe (| head).
  [[nodiscard]] bool abandoned() const noexcept { return abandoned_; }
  /// From now on, bytes beyond the limit are dropped.
  void drop_beyond_limit() noexcept { drops_ = true; }
  /// Returns once, as one line, the reason why output was lost (for example, a full disk). Returns nothing otherwise.
  std::optional<std::string> take_failure();
  /// Returns one line with the number of unread bytes when the remaining output is discarded. Returns nothing if all
  /// output was read.
  [[nodiscard]] std::optional<std::string> unread() const;

 private:
  enum class Kind { file, socket, other };

  [[nodiscard]] size_t waiting() const noexcept { return queue_.size() - written_; }
  /// Returns the number of written bytes, or -1 with errno.
  ssize_t write_some(std::string_view bytes) const;

  int fd_;
  std::string name_;
  Kind kind_ = Kind::other;
  base::FileDescriptor own_;  // non-blocking description of the same pipe or terminal
  std::string queue_;
  size_t written_ = 0;  // written bytes of the queue
  bool abandoned_ = false;
  bool drops_ = false;
  size_t dropped_ = 0;
  int failed_ = 0;  // errno
  bool reported_ = false;
};

}  // namespace accelerate::launch

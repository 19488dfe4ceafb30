// SPDX-License-Identifier: Apache-2.0
// The port where rank 0 will listen.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "accelerate/base/file_descriptor.hpp"
#include "launch/plan/options.hpp"

namespace accelerate::launch {

/// Where rank 0 listens on a host that this launcher does not see: two jobs there, and two starts of one, rarely get
/// the same. Above the well-known ports, below those that Linux hands out by itself. Pure.
int64_t port_of_job(const std::string& job_id);

/// What a launcher says, after its name, that found 29500 in use and took number.
std::string port_moved(int64_t number);

/// A port of 127.0.0.1 kept for rank 0 as long as this lives: bound and not listening, and open to a listener that sets
/// SO_REUSEADDR (as c10d does) while nobody else is given it. No two launchers keep one port.
class ReservedPort {
 public:
  /// wanted   0: a free one. Unset: 29500, or a free one when that is taken.
  /// Throws LaunchError (1) when the wanted port is in use.
  explicit ReservedPort(std::optional<int64_t> wanted);
  [[nodiscard]] int64_t number() const noexcept { return number_; }
  /// 29500 was taken, and nobody asked for another.
  [[nodiscard]] bool moved() const noexcept { return moved_; }

 private:
  /// Opens the sockets and keeps the port, 0 for a free one. Returns 0 or errno.
  int keep(int64_t port);

  base::FileDescriptor socket_;
  base::FileDescriptor lock_;
  int64_t number_ = 0;
  bool moved_ = false;
};

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// Reserves the port of rank 0.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "accelerate/base/file_descriptor.hpp"
#include "launch/plan/options.hpp"

namespace accelerate::launch {

/// Port of rank 0 on a host that this launcher does not access. It depends on the job id, so two jobs there, and two
/// attempts of one job, rarely share it. Above the well-known ports and below Linux's ephemeral ports. Pure function.
int64_t port_of_job(const std::string& job_id);

/// Message of a launcher that found port 29500 in use and selected `number` instead.
std::string port_moved(int64_t number);

/// Reserves a port of 127.0.0.1 for rank 0 during the lifetime of this object: bound, not listening, and open to a
/// listener that sets SO_REUSEADDR (as c10d does). No other process receives this port, and no two launchers share it.
class ReservedPort {
 public:
  /// \param wanted  Port number; 0 selects a free port. If unset, 29500 is used, or a free port if 29500 is taken.
  /// \throws LaunchError (1) if the requested port is in use.
  explicit ReservedPort(std::optional<int64_t> wanted);
  [[nodiscard]] int64_t number() const noexcept { return number_; }
  /// True if 29500 was taken and no other port was requested.
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

// SPDX-License-Identifier: Apache-2.0
// Rendezvous of the launchers of several machines at machine 0, before any rank starts. Missing machines and
// mismatched settings are named. The connections stay open so that all machines end together (job_coordinator.hpp).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/base/file_descriptor.hpp"
#include "launch/rendezvous/message.hpp"

namespace accelerate::launch {

struct RendezvousOptions {
  std::string address{};  ///< address of machine 0 as the user wrote it
  int64_t port = 0;
  JoinRequest own{};
  std::chrono::milliseconds timeout{};  ///< maximum time for all machines to join
};

/// Another launcher.
struct RendezvousPeer {
  int64_t machine = 0;
  std::string host{};
  base::FileDescriptor connection{};
  std::string received{};  ///< incomplete message
};

struct RendezvousResult {
  JoinReply welcome{};
  std::vector<RendezvousPeer> members{};  ///< on machine 0, all other machines; on other machines, machine 0
  base::FileDescriptor kept_port{};       ///< on machine 0, the reserved port for rank 0
};

/// Waits until the launchers of all machines have joined. Connections that are not launchers (port scanners, browsers,
/// silent connections) are closed and do not disturb the rendezvous.
///
/// \throws LaunchError (1) if a machine does not join, if its settings do not match, or if machine 0 cannot listen or
///         be reached.
RendezvousResult rendezvous(const RendezvousOptions& invitation);

/// Returns "machine 1 (gpu-b)".
std::string peer_name(const RendezvousPeer& member);

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// The launchers of several machines meet at machine 0 before a rank starts: whoever does not come or does not fit is
// named. Their connections stay, so that all of them end together (bond.hpp).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "accelerate/base/file_descriptor.hpp"
#include "launch/meet/message.hpp"

namespace accelerate::launch {

struct Invitation {
  std::string address{};  ///< of machine 0, as the user gave it
  int64_t port = 0;
  Hello own{};
  std::chrono::milliseconds timeout{};  ///< for all to come
};

/// Another launcher.
struct Member {
  int64_t machine = 0;
  std::string host{};
  base::FileDescriptor connection{};
  std::string received{};  ///< that is not yet a whole message
};

struct Gathered {
  Welcome welcome{};
  std::vector<Member> members{};     ///< machine 0: all others; they: machine 0
  base::FileDescriptor kept_port{};  ///< machine 0: where rank 0 will listen
};

/// Waits until the launchers of all machines are there. What is no launcher (a scanner, a browser, a connection without
/// a word) is turned away and disturbs nobody.
///
/// Throws LaunchError (1): who has not come, who does not fit, why machine 0 cannot listen or be reached.
Gathered meet(const Invitation& invitation);

/// "machine 1 (gpu-b)"
std::string name_of(const Member& member);

}  // namespace accelerate::launch

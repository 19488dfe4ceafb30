// SPDX-License-Identifier: Apache-2.0
// Finds the process that listens on a port of this machine, as far as permissions allow.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace accelerate::launch {

/// Returns "mnist (pid 4121)", or nothing if the port belongs to another user or no process listens yet.
std::optional<std::string> owner_of_port(int64_t port);

/// Returns " by mnist (pid 4121)", or ", perhaps by another job".
std::string port_owner_text(int64_t port);

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "launch/rendezvous/rendezvous.hpp"

namespace accelerate::launch {

/// The part of rendezvous() on machine 0.
RendezvousResult host_rendezvous(const RendezvousOptions& invitation);

}  // namespace accelerate::launch

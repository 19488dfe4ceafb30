// SPDX-License-Identifier: Apache-2.0
// Network selection for Open MPI between machines. Private.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "accelerate/comm/rendezvous/interfaces.hpp"
#include "accelerate/comm/rendezvous/sockets.hpp"
#include "accelerate/env/process_env.hpp"

namespace accelerate::comm {

/// Selects the network interface for OMPI_MCA_btl_tcp_if_include. By default Open MPI uses all networks of a machine at
/// once and hangs if one of them has no route to the peer.
///
/// \param addresses  Addresses of this machine in order of preference: the one that routes to rank 0, then those of its
///                   host name.
/// \param here       Interfaces of this machine.
/// \returns the interface, or nothing if there is only one or no address matches.
std::optional<std::string> network_between_machines(std::span<const std::string> addresses,
                                                    std::span<const Interface> here);

/// Sets OMPI_MCA_btl_tcp_if_include for a job on several machines, unless the user selected networks. Call before
/// MPI_Init.
/// \param deadline  Limits name resolution.
void choose_network(const env::ProcessEnv& process, Deadline deadline);

}  // namespace accelerate::comm

// SPDX-License-Identifier: Apache-2.0
// The network that Open MPI takes between machines. Private.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "accelerate/comm/rendezvous/interfaces.hpp"
#include "accelerate/comm/rendezvous/sockets.hpp"
#include "accelerate/env/process_env.hpp"

namespace accelerate::comm {

/// addresses   of this machine, the first that counts: the one that leads to rank 0, those of its own name
/// here        this machine's interfaces
/// returns     the interface for OMPI_MCA_btl_tcp_if_include; nothing where there is no choice, or the addresses say
/// none
///
/// Open MPI takes all networks of a machine at once, and hangs where one of them leads nowhere.
std::optional<std::string> network_between_machines(std::span<const std::string> addresses,
                                                    std::span<const Interface> here);

/// Sets OMPI_MCA_btl_tcp_if_include for a job of several machines, unless the user chose networks. Before MPI_Init.
/// deadline   of what a name server is asked
void choose_network(const env::ProcessEnv& process, Deadline deadline);

}  // namespace accelerate::comm

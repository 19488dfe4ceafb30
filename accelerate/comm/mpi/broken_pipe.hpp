// SPDX-License-Identifier: Apache-2.0
// SIGPIPE of connections between ranks. Private to the mpi backend.
#pragma once

namespace accelerate::comm {

/// Installs a handler for SIGPIPE, unless the program handles or ignores this signal. Open MPI writes to the sockets of
/// other ranks, which may have ended; without mpirun, which starts ranks with SIGPIPE ignored, the signal would end
/// this rank without a text. With the handler the write fails, and MPI reports it. A rank with a closed standard output
/// or standard error still ends with SIGPIPE.
void keep_running_after_broken_pipes() noexcept;

}  // namespace accelerate::comm

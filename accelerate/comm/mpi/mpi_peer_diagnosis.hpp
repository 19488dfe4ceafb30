// SPDX-License-Identifier: Apache-2.0
// Diagnoses the other ranks by messages after a failure. Private to the mpi backend.
#pragma once

#include <span>

#include "accelerate/comm/core/collective_fingerprint.hpp"
#include "accelerate/comm/core/peer_error_text.hpp"
#include "accelerate/comm/mpi/channel.hpp"

namespace accelerate::comm {

/// Sends the failed operation to the other ranks, collects their answers for two seconds and returns the diagnosis. May
/// be called once per channel, because MPI may use its memory afterwards.
PeerReport diagnose_by_messages(const MpiChannel& channel, const CollectiveFingerprint& mine,
                                std::span<const int64_t> job_ranks);

}  // namespace accelerate::comm

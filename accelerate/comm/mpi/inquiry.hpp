// SPDX-License-Identifier: Apache-2.0
// After a failure: what can be learnt about the other ranks by messages. Private to the mpi backend.
#pragma once

#include <span>
#include <string>

#include "accelerate/comm/core/call_signature.hpp"
#include "accelerate/comm/mpi/channel.hpp"

namespace accelerate::comm {

/// Tells the others in which operation this rank failed, listens two seconds for what they tell, and says it.
/// Once for a channel: MPI may use its memory for ever.
std::string ask_by_messages(const MpiChannel& channel, const CallSignature& mine, std::span<const int64_t> job_ranks);

}  // namespace accelerate::comm

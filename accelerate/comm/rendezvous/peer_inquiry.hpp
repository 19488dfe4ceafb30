// SPDX-License-Identifier: Apache-2.0
// After a failure: what can be learnt about the other ranks through the store. Private.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "accelerate/comm/core/call_signature.hpp"

namespace accelerate::comm {

/// Tells the others in which operation this rank failed, listens two seconds for what they tell, and says it:
/// "rank 1 is in operation 4 (barrier).", "nothing was heard from rank 1.". "" where the store is gone too.
/// Takes four seconds at most, whatever the store does.
std::string ask_peers(const c10::intrusive_ptr<c10d::Store>& store, const std::string& group, const CallSignature& mine,
                      int64_t rank, const std::vector<int64_t>& job_ranks) noexcept;

}  // namespace accelerate::comm

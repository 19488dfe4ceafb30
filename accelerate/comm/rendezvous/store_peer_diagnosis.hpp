// SPDX-License-Identifier: Apache-2.0
// Diagnoses the other ranks through the store after a failure. Private.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "accelerate/comm/core/collective_fingerprint.hpp"
#include "accelerate/comm/core/peer_error_text.hpp"

namespace accelerate::comm {

/// The job's store, and the texts for the case that it is lost.
struct StoreConnectionInfo {
  c10::intrusive_ptr<c10d::Store> store{};
  std::string address{};      ///< "gpu-a:29500"
  std::string store_owner{};  ///< "rank 0"
};

/// Reports the failed operation to the other ranks, collects their reports for two seconds and returns the diagnosis:
/// "rank 1 is in operation 4 (barrier).", "no response from rank 1.". Without the store no rank can be queried:
/// "the job's store at gpu-a:29500, which rank 0 keeps, is gone.", or "does not answer" if its process hangs. Takes at
/// most four seconds, whatever the store does.
PeerReport diagnose_peers_over_store(const StoreConnectionInfo& kept, const std::string& group,
                                     const CollectiveFingerprint& mine, int64_t rank,
                                     const std::vector<int64_t>& job_ranks) noexcept;

/// Records in the store that this rank starts to connect the group's backend.
void announce_arrival(c10d::Store& store, const std::string& group, int64_t rank);

/// Returns the ranks that have not arrived; empty if the store does not answer within two seconds.
std::vector<int64_t> missing_ranks_in_store(const c10::intrusive_ptr<c10d::Store>& store, const std::string& group,
                                            int64_t size) noexcept;

}  // namespace accelerate::comm

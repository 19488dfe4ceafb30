// SPDX-License-Identifier: Apache-2.0
// Rendezvous of a job's ranks: a key-value store on rank 0. Private.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "accelerate/base/error.hpp"
#include "accelerate/env/process_env.hpp"

namespace accelerate::comm {

/// Connects to the job's store. Rank 0 hosts it at MASTER_ADDR:MASTER_PORT and listens only on that address; under
/// torchrun's agent every rank is a client. Keys contain the job's id and the restart count. The call takes no longer
/// than the timeout, plus two seconds if a store stops answering.
///
/// \throws Error (environment) without an address or port, or if the address belongs to another machine, is in use or
///         (several machines) resolves to loopback. Error (peer) if ranks did not join within the timeout, if the store
///         was lost, does not answer or belongs to another job, or if another process has the same rank.
c10::intrusive_ptr<c10d::Store> rendezvous_store(const env::ProcessEnv& process, const RankContext& place,
                                                 std::chrono::milliseconds timeout);

/// As rendezvous_store(), without a known address: rank 0 listens on a free port, and the backend distributes it.
/// Without MASTER_ADDR the store listens on loopback if one machine runs all ranks, otherwise on an address that other
/// machines can reach.
c10::intrusive_ptr<c10d::Store> rendezvous_store_over(c10d::Backend& backend, const env::ProcessEnv& process,
                                                      const RankContext& place, std::chrono::milliseconds timeout);

}  // namespace accelerate::comm

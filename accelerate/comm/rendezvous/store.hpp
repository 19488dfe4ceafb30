// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a job meet: a key-value store at rank 0. Private.
#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "accelerate/base/error.hpp"
#include "accelerate/env/process_env.hpp"

namespace accelerate::comm {

/// The job's store. Rank 0 holds it at MASTER_ADDR:MASTER_PORT and listens on that address only; under torchrun's agent
/// every rank is a client. Keys carry the job's id and the restart count.
///
/// Throws Error: environment without an address or port, or when the address is not this machine's, taken, or (several
/// machines) a name for loopback; peer when ranks did not come within the timeout, the store was lost, is another job's
/// or does not answer, or another process is this rank too. Waits no
/// longer than the timeout, and two seconds where a store stops answering.
c10::intrusive_ptr<c10d::Store> meet(const env::ProcessEnv& process, const Place& place,
                                     std::chrono::milliseconds timeout);

/// The same without an address known beforehand: rank 0 listens on a free port, and the backend tells the others.
/// Without MASTER_ADDR that is on loopback where one machine has all ranks, else on an address that other machines
/// reach.
c10::intrusive_ptr<c10d::Store> meet_over(c10d::Backend& backend, const env::ProcessEnv& process, const Place& place,
                                          std::chrono::milliseconds timeout);

}  // namespace accelerate::comm

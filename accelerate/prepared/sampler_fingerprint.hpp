// SPDX-License-Identifier: Apache-2.0
// Private: debug mode compares the sampler fingerprints of a pass across the ranks.
#pragma once

#include "accelerate/comm/group.hpp"
#include "accelerate/data/loader_concepts.hpp"

namespace accelerate::prepared {

/// Compares the order of this rank with that of rank 0. Collective.
/// \throws Error (usage), the same on every rank, if a rank reads other samples than rank 0, or in another order or
///   epoch. It contains the first such rank and both orders.
void check_same_sampler_order(const data::SamplerFingerprint& mine, const comm::Group& group);

}  // namespace accelerate::prepared

// SPDX-License-Identifier: Apache-2.0
// Private: debug mode compares the orders of a pass.
#pragma once

#include "accelerate/comm/group.hpp"
#include "accelerate/data/shardable.hpp"

namespace accelerate::prepared {

/// Throws on every rank the same Error (usage) where a rank visits other samples than rank 0, or in another order or
/// epoch: it names the first such rank and both orders. Collective.
void require_one_order(const data::OrderPrint& mine, const comm::Group& group);

}  // namespace accelerate::prepared

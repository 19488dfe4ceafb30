// SPDX-License-Identifier: Apache-2.0
// Refuses options and calls that do not work with sharding.
#pragma once

#include <string_view>

#include "accelerate/prepared/accelerator_state.hpp"

namespace torch::optim {
class Optimizer;
}

namespace accelerate::prepared {

/// Checks the options of an Accelerator, for any number of ranks, so that a program that runs on one rank also runs on
/// several.
/// \throws Error (usage) if the strategy, or another option together with it, is not supported.
void check_sharding(const AcceleratorState& shared, bool save_on_each_node);

/// Returns true if prepare() divides models: if a strategy is set and there are several ranks, or cpu_offload is set.
[[nodiscard]] bool divides_models(const AcceleratorState& shared);
/// Returns true if prepare() divides the gradients of models, too.
[[nodiscard]] bool divides_gradients(const AcceleratorState& shared);

/// \throws Error (usage) if optimizer state is sharded and the optimizer cannot step on ranges of parameters, or if it
///         combines all elements and this rank has parts of tensor parallel layers.
void check_shardable(const AcceleratorState& shared, torch::optim::Optimizer& optimizer);

/// \param reason  Continues the sentence "with sharding shard_optim_op it is not supported, because ...".
/// \throws Error (usage) if a sharding strategy is set.
void refuse_with_sharding(const AcceleratorState& shared, std::string_view operation, std::string_view reason);

}  // namespace accelerate::prepared

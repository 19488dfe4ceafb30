// SPDX-License-Identifier: Apache-2.0
// Converts the batch normalisation of a whole model to one over all ranks.
#pragma once

#include <cstdint>

#include "accelerate/comm/group.hpp"

namespace torch::nn {
class Module;
}

namespace accelerate::nn {

/// Replaces every BatchNorm1d, 2d and 3d of LibTorch in a Sequential, ModuleList or ModuleDict anywhere in the module
/// by a SyncBatchNorm, and connects those and all SyncBatchNorms without a group. Parameters and buffers stay the same
/// tensors with the same names and order, so existing optimizers and prepared models remain valid. All ranks must call
/// it with equal modules.
///
/// Layers that are members of a user-defined class cannot be replaced, because the class would still call the old
/// layer. Declare those members as SyncBatchNorm. Code that casts an entry of a ModuleList or ModuleDict to a LibTorch
/// layer finds a SyncBatchNorm afterwards.
///
/// \returns the number of synchronised layers.
/// \throws Error (usage), without changes, with all LibTorch layers (and classes derived from them) that are members;
///         the module itself may be one.
int64_t convert_sync_batchnorm(torch::nn::Module& module, const comm::Group& group);

/// Connects existing layers only: SyncBatchNorms without a group share one duplicate of this group. With one rank, or
/// if there is no such layer, the function does nothing and calls no collective.
/// \returns the number of connected layers.
int64_t connect_sync_batchnorm(torch::nn::Module& module, const comm::Group& group);

}  // namespace accelerate::nn

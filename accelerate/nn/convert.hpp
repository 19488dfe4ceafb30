// SPDX-License-Identifier: Apache-2.0
// Batch normalisation of a whole model made one over all ranks.
#pragma once

#include <cstdint>

#include "accelerate/comm/group.hpp"

namespace torch::nn {
class Module;
}

namespace accelerate::nn {

/// Replaces every stock BatchNorm1d, 2d and 3d in a Sequential, ModuleList or ModuleDict anywhere in the module by a
/// SyncBatchNorm, and connects those and all SyncBatchNorms without a group. Parameters and buffers stay the same
/// tensors with the same names and order, so existing optimizers and prepared models remain valid. All ranks call it
/// with equal modules.
///
/// Layers that are members of a user's class cannot be exchanged, because the class would still call the old layer.
/// Declare those members as SyncBatchNorm. Code that casts an entry of a ModuleList or ModuleDict to a stock layer
/// finds a SyncBatchNorm afterwards.
///
/// \returns the number of synchronised layers.
/// \throws Error (usage), without changes, naming all stock layers (and classes derived from them) that are members;
/// the
///         module itself may be one.
int64_t convert_sync_batchnorm(torch::nn::Module& module, const comm::Group& group);

/// Only connects: SyncBatchNorms without a group share one duplicate of this group. Does nothing with one rank, and
/// calls no collective if there is none to connect.
/// \returns the number of connected layers.
int64_t connect_sync_batchnorm(torch::nn::Module& module, const comm::Group& group);

}  // namespace accelerate::nn

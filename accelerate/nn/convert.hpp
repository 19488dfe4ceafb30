// SPDX-License-Identifier: Apache-2.0
// Batch normalisation of a whole model made one over all ranks.
#pragma once

#include <cstdint>

#include "accelerate/comm/group.hpp"

namespace torch::nn {
class Module;
}

namespace accelerate::nn {

/// Puts a SyncBatchNorm in place of every stock BatchNorm1d, 2d and 3d that a Sequential, ModuleList or ModuleDict
/// anywhere in the module holds, and connects those and all SyncBatchNorms of it that have no group yet. Parameters,
/// buffers, their names and order stay the same tensors, so optimizers and prepared models made before go on. All ranks
/// call it on modules that are alike.
///
/// A module of your own keeps its layers in members of its class, which nobody else can exchange: it would go on
/// calling the old layer. Declare those members as SyncBatchNorm. Code that casts an entry of a ModuleList or
/// ModuleDict to a stock layer finds a SyncBatchNorm there afterwards.
///
/// returns   how many layers are synchronised afterwards
/// Throws Error (usage), with nothing changed, naming all stock layers (classes derived from them, too) that are held
/// elsewhere; the module itself may be one.
int64_t convert_sync_batchnorm(torch::nn::Module& module, const comm::Group& group);

/// Only the second half: SyncBatchNorms without a group share one duplicate of this. Nothing with one rank, and no
/// collective where there is none to connect.
/// returns   how many were connected
int64_t connect_sync_batchnorm(torch::nn::Module& module, const comm::Group& group);

}  // namespace accelerate::nn

// SPDX-License-Identifier: Apache-2.0
// States as the state_dict()s of PyTorch's optimizers, schedulers and scaler, in files of torch.save: either reads the
// other's.
#pragma once

#include <optional>

#include "accelerate/archive/pickle_value.hpp"
#include "accelerate/checkpoint/torch_file.hpp"
#include "accelerate/precision/scaler_state.hpp"
#include "accelerate/state/loader_state.hpp"
#include "accelerate/state/optimizer_state.hpp"
#include "accelerate/state/scheduler_state.hpp"

namespace accelerate::checkpoint {

// to_python: content for the file. from_file: \throws Error (data) with file and member if it is not such a state.

[[nodiscard]] archive::PickleValue to_python(const state::OptimizerState& state, TorchFileWriter& writer);
[[nodiscard]] state::OptimizerState optimizer_from(const TorchFile& file);

/// With the members that PyTorch's LRScheduler has, and ours beside them, under "accelerate".
[[nodiscard]] archive::PickleValue to_python(const state::SchedulerState& state);
/// Of a file of PyTorch's the steps, base rates and rates: the kind of schedule is not in it, nor are momenta.
[[nodiscard]] state::SchedulerState scheduler_from(const TorchFile& file);

[[nodiscard]] archive::PickleValue to_python(const precision::ScalerState& state);
/// Unset for a disabled GradScaler, whose state is empty.
[[nodiscard]] std::optional<precision::ScalerState> scaler_from(const TorchFile& file);

[[nodiscard]] archive::PickleValue to_python(const state::LoaderState& state);
[[nodiscard]] state::LoaderState loader_from(const TorchFile& file);

}  // namespace accelerate::checkpoint

// SPDX-License-Identifier: Apache-2.0
// States of optimizers, schedulers and scalers as PyTorch's state_dict() in torch.save files. Each library can read the
// other's files.
#pragma once

#include <optional>

#include "accelerate/archive/pickle_value.hpp"
#include "accelerate/checkpoint/torch_file.hpp"
#include "accelerate/precision/scaler_state.hpp"
#include "accelerate/state/loader_state.hpp"
#include "accelerate/state/optimizer_state.hpp"
#include "accelerate/state/scheduler_state.hpp"

namespace accelerate::checkpoint {

// to_python() returns the content for the file. The functions `..._from` throw Error (data) with file and member if the
// file has no such state.

[[nodiscard]] archive::PickleValue to_python(const state::OptimizerState& state, TorchFileWriter& writer);
[[nodiscard]] state::OptimizerState optimizer_from(const TorchFile& file);

/// Has the members of PyTorch's LRScheduler, and this library's own members under "accelerate".
[[nodiscard]] archive::PickleValue to_python(const state::SchedulerState& state);
/// Reads steps, base rates and rates from files of PyTorch, which lack the kind of schedule and momenta.
[[nodiscard]] state::SchedulerState scheduler_from(const TorchFile& file);

[[nodiscard]] archive::PickleValue to_python(const precision::ScalerState& state);
/// Returns no value for a disabled GradScaler, because its state is empty.
[[nodiscard]] std::optional<precision::ScalerState> scaler_from(const TorchFile& file);

[[nodiscard]] archive::PickleValue to_python(const state::LoaderState& state);
[[nodiscard]] state::LoaderState loader_from(const TorchFile& file);

}  // namespace accelerate::checkpoint

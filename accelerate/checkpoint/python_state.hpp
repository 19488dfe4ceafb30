// SPDX-License-Identifier: Apache-2.0
// States of optimizers, schedulers and scalers as PyTorch's state_dict() in torch.save files. Each library can read the
// other's files.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/archive/origin.hpp"
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
/// Reads the state with parameters by number, or by name as FSDP writes it.
[[nodiscard]] state::OptimizerState optimizer_from(const TorchFile& file);

/// Has the members of PyTorch's LRScheduler, and this library's own members under "accelerate".
/// Returns no value for kinds that LibTorch's optimizers do not have. A tensor is no such value.
[[nodiscard]] std::optional<state::OptionValue> option_from(const archive::PickleValue& value);

/// Numbers the parameters of an optimizer by their position in its groups. Python identifies each by a number, or by
/// its name as FSDP does.
class ParameterPositions {
 public:
  /// Returns the positions of a group's parameters, and adds their names to `saved`.
  /// \throws Error (data) if they are neither numbers nor names, and for a parameter in two groups.
  [[nodiscard]] std::vector<int64_t> add_group(const archive::PickleItems& keys, state::OptimizerState& saved,
                                               const archive::Origin& origin);
  /// \throws Error (data) if no group lists the parameter.
  [[nodiscard]] int64_t position_of(const archive::PickleValue& key, const archive::Origin& origin) const;
  /// Returns the number or name of a parameter for errors.
  [[nodiscard]] static std::string shown(const archive::PickleValue& key);

 private:
  [[nodiscard]] static std::string key_of(const archive::PickleValue& key);

  std::map<std::string, int64_t> positions_{};  // by key_of()
};

[[nodiscard]] archive::PickleValue to_python(const state::SchedulerState& state);
/// Reads steps, base rates and rates from files of PyTorch, which lack the kind of schedule and momenta.
[[nodiscard]] state::SchedulerState scheduler_from(const TorchFile& file);

[[nodiscard]] archive::PickleValue to_python(const precision::ScalerState& state);
/// Returns no value for a disabled GradScaler, because its state is empty.
[[nodiscard]] std::optional<precision::ScalerState> scaler_from(const TorchFile& file);

[[nodiscard]] archive::PickleValue to_python(const state::LoaderState& state);
[[nodiscard]] state::LoaderState loader_from(const TorchFile& file);

}  // namespace accelerate::checkpoint

// SPDX-License-Identifier: Apache-2.0
// The states of all generators of a rank, in the file that Hugging Face Accelerate has for them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include "accelerate/archive/pickle_value.hpp"
#include "accelerate/base/error.hpp"

namespace accelerate::checkpoint {

class TorchFile;
class TorchFileWriter;

struct RandomStates {
  int64_t step = 0;                      ///< Accelerate's counter of calls of accumulate()
  std::vector<int64_t> local_buffers{};  ///< see Content::local_buffers
  at::Tensor cpu{};                      ///< uint8, LibTorch's and PyTorch's alike
  /// One state per accelerator that this process sees; may be empty.
  std::vector<at::Tensor> accelerators{};
  /// States of Python and NumPy from the loaded file, which are passed through unchanged. If None, new ones are derived
  /// from the seed of the CPU generator.
  archive::PickleValue python{}, numpy{};
};

/// Returns the current states of this process's default generators.
/// \param accelerator  Device type; CPU if there is none.
[[nodiscard]] RandomStates random_states(c10::DeviceType accelerator);
/// Sets the states. Additional accelerators keep theirs.
/// \throws Error (data) for a state of another size.
void set_random_states(const RandomStates& states, c10::DeviceType accelerator, const Place& place);

/// \throws as set_random_states() does, without changing anything.
void check_random_states(const RandomStates& states, c10::DeviceType accelerator, const Place& place);

/// Throws Error (data) if `state` is not a state of that device's generator in size and dtype.
void check_random_state(c10::Device device, const at::Tensor& state, const Place& place);

/// For a rank that the saved run did not have: draws of its own that follow from the saved ones of rank 0.
void branch_off(const RandomStates& of_rank_0, int64_t rank);

[[nodiscard]] archive::PickleValue to_python(const RandomStates& states, c10::DeviceType accelerator,
                                             TorchFileWriter& writer);
[[nodiscard]] RandomStates random_states_from(const TorchFile& file, c10::DeviceType accelerator);

/// True if the folder has random states written by this library, even if other files are missing. Hugging Face
/// Accelerate's files of the same names do not identify their writer.
[[nodiscard]] bool is_ours(const std::filesystem::path& folder);

}  // namespace accelerate::checkpoint

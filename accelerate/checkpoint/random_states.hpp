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
  /// Of every accelerator that this process sees; empty where there is none.
  std::vector<at::Tensor> accelerators{};
  /// Python's and NumPy's, as the file that was loaded had them: nobody here draws from them, so they are handed on.
  /// None: new ones are made, from the seed of the CPU's generator.
  archive::PickleValue python{}, numpy{};
};

/// Of the default generators of this process as they are now.
/// accelerator   the type; CPU: there is none
[[nodiscard]] RandomStates random_states(c10::DeviceType accelerator);
/// Sets them. Accelerators that are here more than in the file keep theirs.
/// Throws Error (data) for a state of another size.
void set_random_states(const RandomStates& states, c10::DeviceType accelerator, const Place& place);

/// Throws as set_random_states() does; nothing is changed.
void check_random_states(const RandomStates& states, c10::DeviceType accelerator, const Place& place);

/// Throws Error (data) if `state` is not a state of that device's generator in size and dtype.
void check_random_state(c10::Device device, const at::Tensor& state, const Place& place);

/// For a rank that the saved run did not have: draws of its own that follow from the saved ones of rank 0.
void branch_off(const RandomStates& of_rank_0, int64_t rank);

[[nodiscard]] archive::PickleValue to_python(const RandomStates& states, c10::DeviceType accelerator,
                                             TorchFileWriter& writer);
[[nodiscard]] RandomStates random_states_from(const TorchFile& file, c10::DeviceType accelerator);

/// Whether a folder has random states that this library wrote, whatever else of it is missing. Hugging Face
/// Accelerate's of the same names say nothing of who wrote them.
[[nodiscard]] bool is_ours(const std::filesystem::path& folder);

}  // namespace accelerate::checkpoint

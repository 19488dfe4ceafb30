// SPDX-License-Identifier: Apache-2.0
// States of all random generators of a rank, in the file of Hugging Face Accelerate.
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
  at::Tensor cpu{};                      ///< uint8; equal in LibTorch and PyTorch
  /// One state per accelerator that this process sees; may be empty.
  std::vector<at::Tensor> accelerators{};
  /// States of Python and NumPy from the loaded file, which are passed through unchanged. If None, new ones are derived
  /// from the seed of the CPU generator.
  archive::PickleValue python{}, numpy{};
};

/// Returns the current states of this process's default generators.
/// \param accelerator  Device type; CPU for a process without an accelerator.
[[nodiscard]] RandomStates random_states(c10::DeviceType accelerator);
/// Sets the states. Additional accelerators keep theirs.
/// \throws Error (data) for a state of another size.
void set_random_states(const RandomStates& states, c10::DeviceType accelerator, const RankContext& place);

/// Checks the states like set_random_states(), without setting them.
/// \throws Error (data) for a state of another size.
void check_random_states(const RandomStates& states, c10::DeviceType accelerator, const RankContext& place);

/// \throws Error (data) if `state` differs from a state of that device's generator in size or dtype.
void check_random_state(c10::Device device, const at::Tensor& state, const RankContext& place);

/// Seeds the generators of a rank that the saved job did not have. The seed is derived from rank 0's saved states.
void derive_stream(const RandomStates& rank_0_states, int64_t rank);

[[nodiscard]] archive::PickleValue to_python(const RandomStates& states, c10::DeviceType accelerator,
                                             TorchFileWriter& writer);
[[nodiscard]] RandomStates random_states_from(const TorchFile& file, c10::DeviceType accelerator);

/// True if the folder has random states written by this library, even if other files are missing. Hugging Face
/// Accelerate's files of the same names do not identify their writer.
[[nodiscard]] bool is_accelerate_cpp_format(const std::filesystem::path& folder);

}  // namespace accelerate::checkpoint

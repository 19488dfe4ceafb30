// SPDX-License-Identifier: Apache-2.0
// Content of a checkpoint as named tensors and values, without modules or optimizers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "accelerate/checkpoint/random_states.hpp"
#include "accelerate/checkpoint/tensors.hpp"
#include "accelerate/precision/scaler_state.hpp"
#include "accelerate/state/loader_state.hpp"
#include "accelerate/state/optimizer_state.hpp"
#include "accelerate/state/scheduler_state.hpp"

namespace accelerate::checkpoint {

/// State of a registered user object: opaque bytes, or tensors by name.
using CustomState = std::variant<std::string, NamedTensors>;

/// This rank's part of an incomplete accumulation window.
struct OpenWindow {
  int64_t micro_batches = 0;
  /// gradient_accumulation_steps: length of the window and divisor of means; 0 if unknown, as in older files.
  int64_t of = 0;
  // Units that the window's losses are sums over; see prepared::WindowCount.
  int64_t loss_unit = 0, count = 0, undivided = 0;
  NamedTensors gradients{};  ///< "model.0/first.weight"
};

/// State of the CPU generator at the start of a pass over a loader that does not return its position. With it a resumed
/// run skips the batches in the same order.
struct LoaderGenerator {
  at::Tensor state{};  ///< as torch.get_rng_state() returns it, uint8; undefined if no pass was open
  int64_t pass = 0;    ///< passes that had begun in rank 0's process; 0 with a single rank
};

/// Elements of a tensor of which each rank saves its own, so that no rank needs the whole tensor.
struct TensorPart {
  std::string kind{};            ///< "model", "master_weights", "optimizer" or "custom"
  int64_t index = 0;             ///< of the model, optimizer or registered object; 0 for masters
  std::string name{};            ///< "first.weight", "model.0/first.weight" or "3.exp_avg"
  std::vector<int64_t> sizes{};  ///< of the whole tensor
  int64_t begin = 0;             ///< first element in row-major order
  at::Tensor elements{};         ///< one-dimensional, not empty
};

struct CheckpointContent {
  int64_t step = 0;         ///< optimizer steps so far
  int64_t epoch = 0;        ///< of the first loader
  int64_t accumulated = 0;  ///< counted calls of accumulate(), Accelerate's "step"
  std::vector<NamedTensors> models{};
  std::vector<bool> with_buffers{};  ///< per model: has buffers, which may differ between ranks; may be empty
  std::vector<bool> in_parts{};      ///< per model: parameters are in `parts`, not in `models`; may be empty
  NamedTensors masters{};            ///< float32 copies of weights that are stored in bfloat16: "model.0/first.weight"
  std::vector<state::OptimizerState> optimizers{};
  std::vector<std::optional<state::SchedulerState>> schedulers{};  ///< unset for one without a state
  std::vector<std::optional<state::LoaderState>> loaders{};
  /// By index of the loader. Unset if the loader returns its position, and in files of older versions.
  std::vector<std::optional<LoaderGenerator>> loader_generators{};
  std::optional<precision::ScalerState> scaler{};
  std::vector<CustomState> customs{};
  // Data of this rank only.
  std::vector<TensorPart> parts{};
  RandomStates random{};
  std::optional<OpenWindow> window{};
  NamedTensors buffers{};  ///< "model.0/bn.running_mean"
  /// Rank 0's values of these buffers, by the same names. A buffer with the same bytes is not written again.
  NamedTensors buffers_of_rank_0{};
  /// Indices of models that do not broadcast rank 0's buffers in the next forward. Equal on every rank.
  std::vector<int64_t> local_buffers{};
  NamedTensors comm_hooks{};  ///< state of communication hooks: "model.0/error of 3"
};

}  // namespace accelerate::checkpoint

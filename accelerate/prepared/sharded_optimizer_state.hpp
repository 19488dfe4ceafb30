// SPDX-License-Identifier: Apache-2.0
// Private: collects the ranks' parts of sharded optimizer state for a checkpoint.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "accelerate/checkpoint/checkpoint_content.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/state/optimizer_state.hpp"

namespace accelerate::sharding {
class FullyShardedParameters;
}

namespace accelerate::prepared {

class ModelCore;

/// States by optimizer index; unset for an optimizer that is not sharded.
using OptimizerStates = std::vector<std::optional<state::OptimizerState>>;

/// Whole values of sharded parameters by TensorImpl: on rank 0 of the data parallel group in the memory of the host, on
/// other ranks empty tensors. Parts of tensor parallel layers are recorded as parts.
struct WholeWeights {
  std::unordered_map<const void*, at::Tensor> values{};
  std::unordered_map<const void*, at::Tensor> masters{};  ///< of parameters with a float32 master
};

/// \throws Error (usage) if a sharded model has gradients of an earlier backward, and no prepared optimizer has any of
/// its
///         parameters: an optimizer that was not prepared sees no gradients.
void check_sharded_models_are_stepped(AcceleratorState& shared);

/// Gathers the sharded parameters of the models on rank 0, one at a time. Collective.
/// \param except  Parameters by TensorImpl that are not gathered, the same on all ranks.
[[nodiscard]] WholeWeights gather_weights(const std::vector<sharding::FullyShardedParameters*>& models,
                                          const std::unordered_set<const void*>& except = {});
/// Gathers sharded parameters while a file is written, each when its bytes are due, in one order on all ranks.
class StreamedWeights {
 public:
  explicit StreamedWeights(const std::vector<sharding::FullyShardedParameters*>& models);

  /// Replaces the sharded parameters by placeholders. The same parameter gets the same placeholder.
  void replace(checkpoint::NamedTensors& weights);
  using Write = std::function<void(const checkpoint::ProvideValues&)>;
  /// Gathers the placeholders in this order. Collective.
  /// \param write  On rank 0, a function that writes with the values of the placeholders; unset on other ranks.
  /// \returns the exception of `write`. The other parameters are gathered nevertheless, because the other ranks take
  ///   part in all gathers.
  /// \throws Error (peer) if a gather fails. The error names the user's call `operation`.
  [[nodiscard]] std::exception_ptr run(const std::vector<at::Tensor>& order, const Write& write,
                                       std::string_view operation);

 private:
  struct Source {
    sharding::FullyShardedParameters* model;
    at::Tensor parameter, placeholder, part;
  };
  std::unordered_map<const void*, Source> sources_{};          // by TensorImpl of the parameter
  std::unordered_map<const void*, const void*> parameters_{};  // by TensorImpl of the placeholder
};

/// Replaces sharded parameters by whole tensors in the memory of the host, on rank 0 of the data parallel group, over
/// which it is collective. Parts of tensor parallel layers stay parts.
/// \returns false on other ranks if parameters are sharded; `weights` is empty then.
[[nodiscard]] bool gather_on_rank_0(const ModelCore& model, checkpoint::NamedTensors& weights,
                                    std::string_view operation);

/// Replaces sharded parameters by their whole values.
void replace_sharded(checkpoint::NamedTensors& weights, const WholeWeights& whole);

/// Returns the state of this rank, without copies: tensors of the ranges that this rank owns. Local; may throw on a
/// single rank.
[[nodiscard]] OptimizerStates sharded_states(AcceleratorState& shared);

/// Returns the states with whole tensors on rank 0 and without tensors on the other ranks. A tensor of one parameter at
/// a time is in transit. Collective.
/// \param own  Result of sharded_states() on this rank.
[[nodiscard]] OptimizerStates gather_states(AcceleratorState& shared, const OptimizerStates& own);

}  // namespace accelerate::prepared

// SPDX-License-Identifier: Apache-2.0
// Private: converts the registered objects to the content of a checkpoint, and back.
#pragma once

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "accelerate/checkpoint/read.hpp"
#include "accelerate/gradient/coalesced.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/checkpoint_io.hpp"
#include "accelerate/prepared/custom_state.hpp"
#include "accelerate/prepared/pipeline_state.hpp"
#include "accelerate/prepared/sharded_customs.hpp"
#include "accelerate/prepared/sharded_optimizer_state.hpp"
#include "accelerate/prepared/state_dict_match.hpp"

namespace accelerate::prepared {

class OptimizerCore;
class SchedulerCore;

/// The buffers of each model, by model index, with rank 0's values; see ModelCore::buffers_with_rank_0().
using BuffersWithRank0 = std::vector<std::vector<gradient::BufferBroadcast::WithRoot>>;
/// Collective, unlike content_of(), which may throw on a single rank.
[[nodiscard]] BuffersWithRank0 buffers_with_rank_0(AcceleratorState& shared);

/// What replaces the sharded parameters and states in a checkpoint.
struct ShardedContent {
  std::vector<checkpoint::TensorPart> parts{};    ///< of this rank
  std::unordered_set<const void*> is_in_parts{};  ///< parameters by TensorImpl
  OptimizerStates states{};                       ///< on rank 0 whole tensors of the others
  WholeWeights weights{};
  std::vector<std::optional<checkpoint::CustomState>> customs{};  ///< of registered objects with sharded tensors
};
/// Gathers the tensors that are not saved in parts on rank 0. Collective.
/// \param states   Result of sharded_states() on this rank.
/// \param customs  Result of sharded_customs() on this rank.
[[nodiscard]] ShardedContent sharded_content(AcceleratorState& shared, OptimizerStates states,
                                             const ShardedCustoms& customs);

/// Waits for the device if states depend on flags in its memory. Tensors are not copied.
[[nodiscard]] checkpoint::CheckpointContent content_of(AcceleratorState& shared,
                                                       const std::vector<CustomObject>& customs,
                                                       const BuffersWithRank0& buffers, ShardedContent sharded);

/// Makes values that were loaded into the ranks' parts visible on all ranks. Collective.
void replace_sharded_values(const std::vector<sharding::FullyShardedParameters*>& models);

/// Returns the prepared optimizer of a scheduler, or null if it has none or the optimizer is unknown.
[[nodiscard]] const OptimizerCore* optimizer_of(AcceleratorState& shared, const SchedulerCore& scheduler);

/// Returns "model.0/first.weight".
[[nodiscard]] std::string name_in(const ModelCore& model, const std::string& name);

/// Returns the first missing part of a checkpoint, "optimizer.bin is missing", or "" if it is complete. For folders of
/// Hugging Face Accelerate, which do not list their files.
[[nodiscard]] std::string missing_file(AcceleratorState& shared, size_t customs,
                                       const checkpoint::CheckpointReader& read);

/// The content of a checkpoint, matched with the models.
struct ValidatedLoad {
  checkpoint::CheckpointReader read{};
  std::vector<WeightMatch> models{};  ///< by model index
};

/// Matches a checkpoint with the prepared objects without changing anything.
/// \param optimizers  Result of optimizer_parameter_names().
/// \throws Error (usage) if other objects are prepared than were saved; Error (data) if tensors differ in name or
/// shape.
[[nodiscard]] ValidatedLoad validate_content(AcceleratorState& shared, const std::vector<CustomObject>& customs,
                                             checkpoint::CheckpointReader read,
                                             const std::vector<OptimizerParameterNames>& optimizers,
                                             const LoadOptions& options);

/// Restores loaders and schedulers first, because only they can validate their state. `undo()` rolls back.
class PositionRestore {
 public:
  /// Records the current positions.
  explicit PositionRestore(AcceleratorState& shared);
  /// \throws the exceptions of the loaders and schedulers.
  void load(const checkpoint::CheckpointContent& content);
  void undo();

 private:
  AcceleratorState& accelerator_state_;
  std::vector<std::optional<state::LoaderState>> loaders_{};
  std::vector<std::optional<state::SchedulerState>> schedulers_{};
};

/// Loads registered objects and custom optimizers. Only their own load functions can validate a saved state. If one
/// throws, those before it have changed, and nothing else has.
/// \throws their exceptions.
void load_fallible_state(AcceleratorState& shared, const std::vector<CustomObject>& customs,
                         const checkpoint::CheckpointReader& read);

/// Loads everything else. Call it only after all fallible parts have succeeded on all ranks, and then
/// replace_sharded_values().
void apply_validated(AcceleratorState& shared, const ValidatedLoad& fit);

}  // namespace accelerate::prepared

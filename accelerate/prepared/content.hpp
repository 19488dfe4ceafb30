// SPDX-License-Identifier: Apache-2.0
// Private: the registry's objects as a checkpoint's content, and back.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "accelerate/checkpoint/read.hpp"
#include "accelerate/gradient/coalesced.hpp"
#include "accelerate/prepared/checkpointing.hpp"
#include "accelerate/prepared/custom_state.hpp"
#include "accelerate/prepared/shared.hpp"
#include "accelerate/prepared/weight_match.hpp"

namespace accelerate::prepared {

class OptimizerCore;
class SchedulerCore;

/// The buffers of each model, by its index, with rank 0's values of them; see ModelCore::buffers_with_rank_0().
using BuffersWithRank0 = std::vector<std::vector<gradient::BufferBroadcast::WithRoot>>;
/// Collective, unlike content_of(), which may throw on one rank alone.
[[nodiscard]] BuffersWithRank0 buffers_with_rank_0(Shared& shared);

/// Waits for the device where states depend on flags of it. Tensors are not copied.
[[nodiscard]] checkpoint::Content content_of(Shared& shared, const std::vector<CustomObject>& customs,
                                             const BuffersWithRank0& buffers);

/// The prepared optimizer whose rates a schedule moves; null: there is none, or the schedule does not say.
[[nodiscard]] const OptimizerCore* optimizer_of(Shared& shared, const SchedulerCore& scheduler);

/// "model.0/first.weight"
[[nodiscard]] std::string name_in(const ModelCore& model, const std::string& name);

/// The first part of a checkpoint that a load would miss: "optimizer.bin is missing"; empty: it is all there. For
/// folders of Hugging Face Accelerate's, which do not list what belongs to them.
[[nodiscard]] std::string missing_part(Shared& shared, size_t customs, const checkpoint::Read& read);

/// What was read, and where it goes.
struct Fit {
  checkpoint::Read read{};
  std::vector<WeightMatch> models{};  ///< by the models' index
};

/// Throws Error: usage where what is prepared is not what was saved, data where tensors differ in name or shape.
/// Nothing is changed.
[[nodiscard]] Fit fit_content(Shared& shared, const std::vector<CustomObject>& customs, checkpoint::Read read,
                              const LoadOptions& options);

/// Where loaders and schedules stand. They know themselves what they take, so they come first, and can be undone.
class Places {
 public:
  /// Remembers where they stand now.
  explicit Places(Shared& shared);
  /// Throws what they throw.
  void load(const checkpoint::Content& content);
  void undo();

 private:
  Shared& shared_;
  std::vector<std::optional<state::LoaderState>> loaders_{};
  std::vector<std::optional<state::SchedulerState>> schedulers_{};
};

/// Registered objects, and optimizers that are no stock ones: whether they take what was saved they say when they load
/// it. Those before the one that throws have changed then, nothing else has. Throws what they throw.
void load_what_may_refuse(Shared& shared, const std::vector<CustomObject>& customs, const checkpoint::Content& content);

/// Puts everything else where its owner is. To be called when all that may throw passed on all ranks.
void apply_content(Shared& shared, const Fit& fit);

}  // namespace accelerate::prepared

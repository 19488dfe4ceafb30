// SPDX-License-Identifier: Apache-2.0
// Saves and loads all prepared objects as one checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/archive/checkpoint_folder.hpp"
#include "accelerate/checkpoint/project.hpp"
#include "accelerate/checkpoint/save.hpp"
#include "accelerate/checkpoint/weights.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/custom_state.hpp"

namespace accelerate::prepared {

using checkpoint::ProjectConfiguration;

class ModelCore;

struct LoadOptions {
  /// If true, the checksum of every file is compared before anything is loaded.
  bool verify = true;
  /// If true, a model must have exactly the tensors of the checkpoint. If false, tensors that exist on one side only
  /// are ignored. Shapes must match in both cases.
  bool strict = true;
  /// If true and no checkpoint exists yet, nothing is loaded and LoadedState::path is empty. This is for programs that
  /// are restarted. If checkpoints exist but none is complete, an Error is thrown nevertheless.
  bool if_any = false;
};

/// Result of load_state().
struct LoadedState {
  std::filesystem::path path{};
  int64_t step = 0;  ///< number of optimizer steps; 0 if unknown
  /// False for a folder of Hugging Face Accelerate if its first optimizer, like SGD, does not count its steps.
  bool step_is_known = true;
  int64_t epoch = 0;       ///< epoch of the next pass over the first loader
  int64_t world_size = 0;  ///< of the job that saved it; 0 if unknown (Hugging Face Accelerate)
  /// Newer checkpoints that were skipped, with the reason: "checkpoint_9: optimizer.bin is missing".
  std::vector<std::string> skipped_checkpoints{};
};

/// Names that exist only in the model or only in the file.
struct LoadedModel {
  std::vector<std::string> missing{};     ///< only in the model
  std::vector<std::string> unexpected{};  ///< only in the file
  bool operator==(const LoadedModel&) const = default;
};

/// Copies saved tensors into a model and into the float32 masters of its parameters, which keep full precision. Every
/// rank must pass the same tensors.
/// \throws Error (data) with all names if shapes differ or, if strict, names differ. Nothing is changed then.
LoadedModel load_weights(const ModelCore& model, AcceleratorState& shared, const checkpoint::SavedWeights& saved,
                         bool strict, std::string_view operation);
/// Parameters and buffers by name.
[[nodiscard]] checkpoint::NamedTensors weights_of(const ModelCore& model);

/// A hook of save_state() or load_state(). `folder` is the unfinished checkpoint, or the one that is loaded.
using StateHook = std::function<void(const std::filesystem::path& folder)>;

/// Removes a hook. Without remove(), the hook is called for the lifetime of the Accelerator, even if the handle is
/// destroyed.
class HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(std::function<void()> remove) : remove_(std::move(remove)) {}
  void remove() {
    if (remove_) std::exchange(remove_, {})();
  }

 private:
  std::function<void()> remove_;
};

/// Saves and loads the registered objects of one Accelerator. Collective, except for the functions that add something.
class Checkpointing {
 public:
  Checkpointing(std::shared_ptr<AcceleratorState> shared, ProjectConfiguration project);

  std::optional<std::filesystem::path> save_state(const std::filesystem::path& folder,
                                                  const checkpoint::SaveOptions& options);
  LoadedState load_state(const std::filesystem::path& folder, const LoadOptions& options);
  void wait() { saver_.wait(); }
  void save_model(const ModelCore& model, const std::filesystem::path& folder,
                  const checkpoint::WeightsOptions& options);
  LoadedModel load_model(const ModelCore& model, const std::filesystem::path& path, bool strict);
  void save(const checkpoint::NamedTensors& tensors, const std::filesystem::path& path);

  void add_custom(CustomObject object);
  HookHandle add_save_hook(StateHook hook) { return add(save_hooks_, std::move(hook)); }
  HookHandle add_load_hook(StateHook hook) { return add(load_hooks_, std::move(hook)); }

 private:
  using Hooks = std::shared_ptr<std::list<StateHook>>;
  static HookHandle add(const Hooks& hooks, StateHook hook);
  static void call(const Hooks& hooks, const std::filesystem::path& folder);
  [[nodiscard]] std::filesystem::path numbered_folder() const;
  [[nodiscard]] std::filesystem::path checkpoints_folder(std::string_view operation) const;
  struct DiskRole {
    /// True for one rank per disk: rank 0, or the first rank of each machine with save_on_each_node.
    bool accesses = true;
    /// All ranks with the same disk verify checksums, each some of the files.
    archive::FileShare verified{};
  };
  /// Collective.
  [[nodiscard]] DiskRole disk_role(std::string_view operation) const;
  /// Returns true if this rank saves tensors that are joined from parts of tensor parallel layers. Collective.
  [[nodiscard]] bool keeps_joined_parts(std::string_view operation) const;
  /// \throws Error (io) on every rank if the folder does not exist on one of them. Collective.
  void check_visible_on_all_ranks(const std::filesystem::path& folder) const;
  void check_one_save(const std::filesystem::path& folder, const std::string& mark) const;
  /// Returns the rank of the saving job with this rank's random states and buffers, or -1 if it has none, because its
  /// mesh was another one.
  [[nodiscard]] int64_t rank_of_own_part(const std::filesystem::path& folder) const;
  /// Returns the damage of a folder, or "" if it is complete. A folder without a manifest, from Hugging Face
  /// Accelerate, is complete if it contains everything that a load needs.
  [[nodiscard]] std::string find_damage(const std::filesystem::path& folder) const;
  /// find_damage() on the ranks that access the disk, then the checksums if `verify`. Collective.
  [[nodiscard]] std::string find_damage_together(const std::filesystem::path& folder, bool verify,
                                                 const DiskRole& role) const;
  /// Finds the highest numbered checkpoint that is complete for all ranks that read the disk. Collective.
  [[nodiscard]] LoadedState newest(const std::filesystem::path& parent, const LoadOptions& options,
                                   const DiskRole& role) const;
  /// Chooses the folder to load, the same on all ranks. Collective.
  [[nodiscard]] LoadedState choose(const std::filesystem::path& folder, const LoadOptions& options) const;
  /// Runs `write` on the ranks that access the disk. Collective.
  void write(const std::function<void()>& write, std::string_view operation) const;

  std::shared_ptr<AcceleratorState> accelerator_state_;
  ProjectConfiguration project_;
  std::vector<CustomObject> customs_;
  /// Python's and NumPy's random states from the loaded checkpoint. Later checkpoints contain them unchanged.
  archive::PickleValue python_random_{}, numpy_random_{};
  Hooks save_hooks_ = std::make_shared<std::list<StateHook>>();
  Hooks load_hooks_ = std::make_shared<std::list<StateHook>>();
  checkpoint::CheckpointWriter saver_;
};

}  // namespace accelerate::prepared

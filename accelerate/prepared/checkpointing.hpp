// SPDX-License-Identifier: Apache-2.0
// What was prepared, saved and loaded as a whole.
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

#include "accelerate/checkpoint/project.hpp"
#include "accelerate/checkpoint/save.hpp"
#include "accelerate/checkpoint/weights.hpp"
#include "accelerate/prepared/custom_state.hpp"
#include "accelerate/prepared/shared.hpp"

namespace accelerate::prepared {

using checkpoint::ProjectConfiguration;

class ModelCore;

struct LoadOptions {
  /// Every file's checksum is compared before anything is loaded.
  bool verify = true;
  /// Models have exactly the tensors of the checkpoint. Off: what is on one side only stays as it is; shapes are equal
  /// all the same.
  bool strict = true;
  /// Where there is no checkpoint yet nothing is loaded, and LoadedState::path is empty: for programs that are started
  /// again and again. Checkpoints of which none is whole are an Error all the same.
  bool if_any = false;
};

/// What load_state() found.
struct LoadedState {
  std::filesystem::path path{};
  int64_t step = 0;  ///< optimizer steps that had been made; 0 if they are not known
  /// False for a folder of Hugging Face Accelerate whose first optimizer, like SGD, keeps no count of its steps.
  bool step_is_known = true;
  int64_t epoch = 0;       ///< of the first loader; the pass over it that comes next is of this epoch
  int64_t world_size = 0;  ///< ranks of the job that saved it; 0: not known, it is of Hugging Face Accelerate
  /// Newer checkpoints that were passed over, and why: "checkpoint_9: optimizer.bin is missing".
  std::vector<std::string> passed_over{};
};

/// What of a model's names did not meet.
struct LoadedModel {
  std::vector<std::string> missing{};     ///< in the model, not in the file
  std::vector<std::string> unexpected{};  ///< in the file, not in the model
  bool operator==(const LoadedModel&) const = default;
};

/// Copies saved tensors into a model's, and into the masters of its parameters, which keep all their bits. Every rank
/// gives the same.
/// Throws Error (data) where shapes differ, or, strict, where names do, with all of them; then nothing is changed.
LoadedModel load_weights(const ModelCore& model, MasterWeights& masters, const checkpoint::NamedTensors& saved,
                         bool strict, std::string_view operation);
/// Parameters and buffers, by their names.
[[nodiscard]] checkpoint::NamedTensors weights_of(const ModelCore& model);

/// A hook of save_state() or load_state(): folder in the making, or that is loaded.
using StateHook = std::function<void(const std::filesystem::path& folder)>;

/// A hook is called until it is removed; without its handle as long as there is the Accelerator.
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

/// Saves and loads what the registry of one Accelerator holds. Its functions are collective, but the registering ones.
class Checkpointing {
 public:
  Checkpointing(std::shared_ptr<Shared> shared, ProjectConfiguration project);

  std::optional<std::filesystem::path> save_state(const std::filesystem::path& folder,
                                                  const checkpoint::SaveOptions& options);
  LoadedState load_state(const std::filesystem::path& folder, const LoadOptions& options);
  void wait() { saver_.wait(); }
  void save_model(const ModelCore& model, const std::filesystem::path& folder,
                  const checkpoint::WeightsOptions& options);
  LoadedModel load_model(const ModelCore& model, const std::filesystem::path& path, bool strict);
  void save(const checkpoint::NamedTensors& tensors, const std::filesystem::path& path);

  void add_custom(CustomObject object) { customs_.push_back(std::move(object)); }
  HookHandle add_save_hook(StateHook hook) { return add(save_hooks_, std::move(hook)); }
  HookHandle add_load_hook(StateHook hook) { return add(load_hooks_, std::move(hook)); }

 private:
  using Hooks = std::shared_ptr<std::list<StateHook>>;
  static HookHandle add(const Hooks& hooks, StateHook hook);
  static void call(const Hooks& hooks, const std::filesystem::path& folder);
  [[nodiscard]] std::filesystem::path numbered_folder() const;
  [[nodiscard]] std::filesystem::path checkpoints_folder(std::string_view operation) const;
  /// Of those who have the same disk one reads and writes: rank 0, or the first rank of each machine.
  [[nodiscard]] bool looks(std::string_view operation) const;
  /// Throws Error (io) on every rank where one of them has no such folder. Collective.
  void check_seen_by_all(const std::filesystem::path& folder) const;
  void check_one_save(const std::filesystem::path& folder, const std::string& mark) const;
  /// Empty: nothing. A folder without a manifest, Hugging Face Accelerate's, is whole where all is there that a load
  /// needs.
  [[nodiscard]] std::string what_is_wrong(const std::filesystem::path& folder, bool verify) const;
  /// The highest numbered one that is whole for all who look. Collective.
  [[nodiscard]] LoadedState newest(const std::filesystem::path& parent, const LoadOptions& options, bool looks) const;
  /// The folder to load, the same on all ranks.
  [[nodiscard]] LoadedState choose(const std::filesystem::path& folder, const LoadOptions& options) const;
  /// On those who look.
  void write(const std::function<void()>& write, std::string_view operation) const;

  std::shared_ptr<Shared> shared_;
  ProjectConfiguration project_;
  std::vector<CustomObject> customs_;
  /// Python's and NumPy's random states of the checkpoint that was loaded, for those that are saved.
  archive::PickleValue python_random_{}, numpy_random_{};
  Hooks save_hooks_ = std::make_shared<std::list<StateHook>>();
  Hooks load_hooks_ = std::make_shared<std::list<StateHook>>();
  checkpoint::Saver saver_;
};

}  // namespace accelerate::prepared

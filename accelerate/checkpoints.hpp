// SPDX-License-Identifier: Apache-2.0
// The facade's part that saves and loads.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "accelerate/prepared/checkpointing.hpp"
#include "accelerate/prepared/model.hpp"

namespace accelerate {

using checkpoint::SaveOptions;
using checkpoint::WeightsOptions;
using checkpoint::WhenBusy;
using prepared::LoadedModel;
using prepared::LoadedState;
using prepared::LoadOptions;
using prepared::PreparedModel;

/// The checkpoints of what one Accelerator prepared.
class Checkpoints {
 public:
  /// Saves models, optimizers, schedules, loaders, the loss scale, random states, where accumulation stands and what
  /// was registered, in a folder that is there as a whole or not at all. Between steps: gradients are saved within an
  /// open accumulation window only. Each rank's buffers are saved where they differ from rank 0's. Hugging Face
  /// Accelerate's load_state() reads it, too. Collective.
  ///
  /// folder    replaced if it is a checkpoint; empty: project.project_dir/checkpoints/checkpoint_N, N one more than the
  ///           highest there, of which project.total_limit stay
  /// returns   it; nothing where an asynchronous save was skipped
  /// Throws Error (io, usage) on every rank, and leaves what was there.
  std::optional<std::filesystem::path> save_state(const std::filesystem::path& folder = {},
                                                  const SaveOptions& options = {}) {
    return checkpointing_->save_state(folder, options);
  }
  /// Everything becomes what was saved: call it when the same objects have been prepared in the same order, outside of
  /// loops over loaders. The next pass over a loader goes on where it stood. Also with another number of ranks, and
  /// with folders of Hugging Face Accelerate. Collective.
  ///
  /// folder    of a checkpoint, or one that holds checkpoint_N: the newest that is whole; empty:
  /// project_dir/checkpoints Throws Error: io and data for what cannot be read or is not whole, usage and data where it
  /// does not fit what is prepared; then nothing is changed.
  LoadedState load_state(const std::filesystem::path& folder = {}, const LoadOptions& options = {}) {
    return checkpointing_->load_state(folder, options);
  }
  /// Until an asynchronous save is done. Throws its error. Collective.
  void wait_for_checkpoint() { checkpointing_->wait(); }

  /// Weights alone, for others to read: model.safetensors, or several files and an index. The main process writes them,
  /// with save_on_each_node one process of each machine. Collective.
  template <typename Model>
  void save_model(const PreparedModel<Model>& model, const std::filesystem::path& folder,
                  const WeightsOptions& options = {}) {
    checkpointing_->save_model(model.core(), folder, options);
  }
  /// path     a .safetensors file, one of torch.save, an index, or a folder of these
  /// strict   names must meet exactly; shapes must in any case
  /// returns  names that did not meet
  /// Throws Error (data) with all of them; then nothing is changed. Collective.
  template <typename Model>
  LoadedModel load_model(const PreparedModel<Model>& model, const std::filesystem::path& path, bool strict = true) {
    return checkpointing_->load_model(model.core(), path, strict);
  }
  /// Tensors as a file, written by the same: safetensors by its name, else one that torch.load reads. Collective.
  void save(const prepared::TensorDict& tensors, const std::filesystem::path& path) {
    checkpointing_->save(prepared::named(tensors), path);
  }
  /// Tensors of such a file, on the CPU; they may lie in the mapped file. Of dicts in dicts, as Python saves them, by
  /// path: "model.fc.weight"; numbers and lists of them are tensors, what else there is a line of the log names.
  [[nodiscard]] static prepared::TensorDict load(const std::filesystem::path& path);

  /// Objects that are saved and loaded with the rest, in this order: with state_dict() and load_state_dict() of tensors
  /// by name, or state() and load_state() of a std::string; schedules, loaders and loss scales of this library that are
  /// not prepared. Shared pointers and what is moved in are kept, other objects referenced.
  /// Throws Error (usage) where a shared pointer points to nothing; then none is registered.
  template <typename... Objects>
  void register_for_checkpointing(Objects&&... objects) {
    prepared::check_all_checkpointable<Objects...>();
    std::array<prepared::CustomObject, sizeof...(Objects)> all{
        prepared::custom_object(prepared::custom_pointer(std::forward<Objects>(objects)))...};
    for (auto& one : all) checkpointing_->add_custom(std::move(one));
  }
  /// Called by save_state() with the folder in the making, where it may put files, on every rank.
  prepared::HookHandle register_save_state_pre_hook(prepared::StateHook hook) {
    return checkpointing_->add_save_hook(std::move(hook));
  }
  /// Called by load_state() with the folder, before anything is changed, on every rank.
  prepared::HookHandle register_load_state_pre_hook(prepared::StateHook hook) {
    return checkpointing_->add_load_hook(std::move(hook));
  }

 protected:
  // Part of an Accelerator only: a copy, or what was moved out of one, would be half of it.
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;
  Checkpoints(Checkpoints&&) = default;
  Checkpoints& operator=(Checkpoints&&) = default;
  ~Checkpoints() = default;

  explicit Checkpoints(std::unique_ptr<prepared::Checkpointing> checkpointing)
      : checkpointing_(std::move(checkpointing)) {}

 private:
  std::unique_ptr<prepared::Checkpointing> checkpointing_;
};

}  // namespace accelerate

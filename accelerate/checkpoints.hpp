// SPDX-License-Identifier: Apache-2.0
// The part of the facade that saves and loads checkpoints.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>

#include "accelerate/prepared/checkpoint_io.hpp"
#include "accelerate/prepared/model.hpp"

namespace accelerate {

using checkpoint::SaveOptions;
using checkpoint::WeightsOptions;
using checkpoint::WriterBusyPolicy;
using prepared::LoadedModel;
using prepared::LoadedState;
using prepared::LoadOptions;
using prepared::PreparedModel;

/// Saves and loads the objects that one Accelerator prepared. Not thread-safe.
class Checkpoints {
 public:
  /// Saves models, optimizers, schedulers, loaders, the loss scale, random states, the position in the accumulation
  /// window, and registered objects. The folder appears complete or not at all. Call it between steps: gradients are
  /// saved only inside an open accumulation window. Buffers of other ranks are saved only if they differ from those of
  /// rank 0. Hugging Face Accelerate's load_state() can read the folder. Collective.
  ///
  /// \param folder  An existing checkpoint there is replaced. If empty, project.project_dir/checkpoints/checkpoint_N is
  ///   used, with N one above the highest existing number; only the newest project.total_limit checkpoints are kept.
  /// \returns the folder, or std::nullopt if an asynchronous save was skipped.
  /// \throws Error (io, usage) on every rank; an existing checkpoint is then unchanged.
  std::optional<std::filesystem::path> save_state(const std::filesystem::path& folder = {},
                                                  const SaveOptions& options = {}) {
    return checkpointing_->save_state(folder, options);
  }
  /// Restores the saved state. Call it after the same objects have been prepared in the same order, and outside of
  /// loops over loaders. The next pass over a loader resumes at the saved position. The number of ranks may differ from
  /// that of the saving job. Folders of Hugging Face Accelerate are accepted too. Collective.
  ///
  /// \param folder  A checkpoint, or a folder that contains checkpoint_N folders; the newest complete checkpoint is
  ///   then loaded. If empty, project_dir/checkpoints is used.
  /// \throws Error (io, data) if files are unreadable or incomplete, Error (usage, data) if the checkpoint does not
  ///   match the prepared objects. Nothing is changed then.
  LoadedState load_state(const std::filesystem::path& folder = {}, const LoadOptions& options = {}) {
    return checkpointing_->load_state(folder, options);
  }
  /// Blocks until an asynchronous save has finished, and throws its error. Collective.
  void wait_for_checkpoint() { checkpointing_->wait(); }

  /// Saves only the weights, for other programs: model.safetensors, or several shard files and an index. The main
  /// process writes them; with save_on_each_node one process of each machine does. Collective.
  template <typename Model>
  void save_model(const PreparedModel<Model>& model, const std::filesystem::path& folder,
                  const WeightsOptions& options = {}) {
    checkpointing_->save_model(model.core(), folder, options);
  }
  /// Loads weights into a prepared model. Collective.
  ///
  /// \param path    A .safetensors file, a file written by torch.save, an index file, or a folder with one of these.
  /// \param strict  If true, the names must match exactly. Shapes must always match.
  /// \returns the missing and the unexpected names.
  /// \throws Error (data) with all mismatches; nothing is changed then.
  template <typename Model>
  LoadedModel load_model(const PreparedModel<Model>& model, const std::filesystem::path& path, bool strict = true) {
    return checkpointing_->load_model(model.core(), path, strict);
  }
  /// Saves tensors in one file, from the same process as save_model(): in safetensors format if the path has that
  /// extension, otherwise in a format that torch.load reads. Collective.
  void save(const prepared::TensorDict& tensors, const std::filesystem::path& path) {
    checkpointing_->save(prepared::named(tensors), path);
  }
  /// Loads the tensors of such a file on the CPU. They may refer to the memory-mapped file. Nested dicts that Python
  /// saved are flattened to dotted names, such as "model.fc.weight". Numbers and lists of numbers become tensors; a log
  /// line names all other entries.
  [[nodiscard]] static prepared::TensorDict load(const std::filesystem::path& path);

  /// Registers objects to be saved and loaded with the checkpoint, in this order. Accepted are objects with
  /// state_dict() and load_state_dict() (tensors by name), objects with state() and load_state() (std::string), and
  /// schedulers, loaders and loss scales of this library that are not prepared. Shared pointers are shared and rvalues
  /// are owned; any other lvalue is kept by reference. An object with tensors of tensor parallel layers needs
  /// state_parameters(), which returns a parameter for each of them by the name in state_dict();
  /// optim::ExponentialMovingAverage has it. An object with tensors of sharded weights needs
  /// state_shards(), which returns this rank's elements with the ranges and keys of the model's parameter_shards(), and
  /// load_state_shards(), which load_state() then calls in place of load_state_dict(). optim::ExponentialMovingAverage
  /// has all of them.
  /// \throws Error (usage) if a shared pointer is null; nothing is registered then.
  template <typename... Objects>
  void register_for_checkpointing(Objects&&... objects) {
    prepared::check_all_checkpointable<Objects...>();
    std::array<prepared::CustomObject, sizeof...(Objects)> all{
        prepared::custom_object(prepared::custom_pointer(std::forward<Objects>(objects)))...};
    for (auto& one : all) checkpointing_->add_custom(std::move(one));
  }
  /// Registers a hook that save_state() calls on every rank with the temporary folder, in which the hook may write
  /// files.
  prepared::HookHandle register_save_state_pre_hook(prepared::StateHook hook) {
    return checkpointing_->add_save_hook(std::move(hook));
  }
  /// Registers a hook that load_state() calls on every rank with the folder, before anything is changed.
  prepared::HookHandle register_load_state_pre_hook(prepared::StateHook hook) {
    return checkpointing_->add_load_hook(std::move(hook));
  }

 protected:
  // Movable only as a part of an Accelerator, to prevent slicing.
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

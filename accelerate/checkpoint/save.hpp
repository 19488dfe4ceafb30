// SPDX-License-Identifier: Apache-2.0
// All ranks save one checkpoint: there as a whole or not at all, at once or beside the training.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "accelerate/checkpoint/content.hpp"
#include "accelerate/comm/group.hpp"

namespace accelerate::checkpoint {

/// What a save does that finds the one before still being written.
enum class WhenBusy {
  wait,  ///< for it
  skip,  ///< nothing is saved
};

struct SaveOptions {
  /// If true, the call returns after copying, and files are written while training continues. A failure is rethrown by
  /// the next save_state(), load_state() or wait_for_checkpoint() on all ranks.
  bool async = false;
  WhenBusy when_busy = WhenBusy::wait;
  /// The checkpoint survives a loss of power: every file is brought to the disk before it counts.
  bool durable = true;
  /// If true, all ranks write common data, each a part of the files; otherwise rank 0 does (with save_on_each_node one
  /// rank per machine). Models with buffers and registered objects are always rank 0's, because ranks may differ.
  /// Useful if ranks have separate disks or separate paths to one.
  bool share_work = false;
  /// Larger models are split into several files, as in save_model(): "5GB". If empty, one file per model, which Hugging
  /// Face Accelerate's load_state() requires; its load_checkpoint_in_model() accepts both.
  std::string max_shard_size{};
};

/// Where and how an Accelerator saves.
struct SaveRequest {
  std::filesystem::path place{};
  SaveOptions options{};
  /// A folder of its own on each machine, for disks that machines do not share.
  bool on_each_node = false;
  /// Checkpoints "checkpoint_N" beside the place that are kept, this one among them; unset: all.
  std::optional<int64_t> total_limit{};
  c10::DeviceType accelerator = c10::DeviceType::CPU;
  /// Called on every rank with the folder in the making; may put files of its own there.
  std::function<void(const std::filesystem::path&)> hook{};
};

/// Saves of one job, one after another. Every function but the destructor is collective.
class Saver {
 public:
  explicit Saver(comm::Group group);
  /// Waits for a pending save; an unreported failure is logged.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Call before save(). Returns false if this save must be skipped because the previous one is still being written.
  /// \throws the failure of the previous save.
  [[nodiscard]] bool ready(const SaveOptions& options);
  /// \throws Error (io, usage) on every rank if any rank fails; the previous content of the path is unchanged.
  void save(const Content& content, const SaveRequest& request);
  /// Waits for a pending save. \throws its failure.
  void wait();

 private:
  struct Making;
  struct Background;

  [[nodiscard]] bool busy() const;
  std::unique_ptr<Making> begin(const SaveRequest& request);
  void save_now(const Content& content, Making& making);
  void save_beside(const Content& content, std::unique_ptr<Making> making);
  /// Whatever went wrong on any of them is an exception on all.
  void agree(const std::exception_ptr& mine, std::string_view doing) const;

  comm::Group group_;
  std::optional<comm::Group> node_{};  // ranks of this machine, created on demand
  std::unique_ptr<Background> background_;
  Content buffers_;
};

}  // namespace accelerate::checkpoint

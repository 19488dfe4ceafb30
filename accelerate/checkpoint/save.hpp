// SPDX-License-Identifier: Apache-2.0
// All ranks save one checkpoint, immediately or in the background. The checkpoint is complete or does not exist.
#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "accelerate/checkpoint/checkpoint_content.hpp"
#include "accelerate/comm/group.hpp"

namespace accelerate::checkpoint {

/// Behavior of a save if the previous one is still being written.
enum class WriterBusyPolicy {
  wait,  ///< wait for the previous save
  skip,  ///< save nothing
};

struct SaveOptions {
  /// If true, the call returns after copying, and files are written while training continues. A failure is rethrown by
  /// the next save_state(), load_state() or wait_for_checkpoint() on all ranks.
  bool async = false;
  WriterBusyPolicy when_writer_busy = WriterBusyPolicy::wait;
  /// If true, the checkpoint survives a power failure: all files are flushed to disk before it counts as complete.
  bool durable = true;
  /// If true, all ranks write common data, each a part of the files; otherwise rank 0 does (with save_on_each_node one
  /// rank per machine). One rank always writes models with buffers and registered objects, because ranks may differ.
  /// Useful if ranks have separate disks or separate paths to one.
  bool share_work = false;
  /// Larger models are split into several files, as in save_model(): "5GB". If empty, each model has one file, which
  /// Hugging Face Accelerate's load_state() requires; its load_checkpoint_in_model() accepts both.
  std::string max_shard_size{};
};

/// Location and options of a save.
struct SaveRequest {
  std::filesystem::path place{};
  SaveOptions options{};
  /// If true, each machine has its own folder, for disks that machines do not share.
  bool on_each_node = false;
  /// Number of newest folders "checkpoint_N" in the parent folder to keep, including this one. If unset, all are kept.
  std::optional<int64_t> total_limit{};
  c10::DeviceType accelerator = c10::DeviceType::CPU;
  /// archive::Manifest::mesh
  std::string mesh{};
  /// Called on every rank with the unfinished folder. It may write its own files there.
  std::function<void(const std::filesystem::path&)> hook{};
};

/// Saves checkpoints of one job, one after another. Every function except the destructor is collective.
class CheckpointWriter {
 public:
  explicit CheckpointWriter(comm::Group group);
  /// Waits for a pending save; an unreported failure is logged.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Call before save(). Returns false if this save must be skipped because the previous one is still being written.
  /// \throws the failure of the previous save.
  [[nodiscard]] bool ready(const SaveOptions& options);
  /// \throws Error (io, usage) on every rank if any rank fails; the previous content of the path is unchanged.
  void save(const CheckpointContent& content, const SaveRequest& request);
  /// Waits for a pending save. \throws its failure.
  void wait();

 private:
  struct CheckpointInProgress;
  struct BackgroundWriter;

  [[nodiscard]] bool busy() const;
  std::unique_ptr<CheckpointInProgress> begin(const SaveRequest& request);
  void save_now(const CheckpointContent& content, CheckpointInProgress& making);
  void save_beside(const CheckpointContent& content, std::unique_ptr<CheckpointInProgress> making);
  /// Converts a failure on any rank to an exception on all ranks; see checkpoint::agree().
  void agree(const std::exception_ptr& mine, std::string_view doing) const;

  comm::Group group_;
  std::optional<comm::Group> node_{};  // ranks of this machine, created on demand
  std::unique_ptr<BackgroundWriter> background_;
  CheckpointContent buffers_;
};

}  // namespace accelerate::checkpoint

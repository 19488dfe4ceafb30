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
  /// The call returns when everything has been copied; files are written while training goes on. An error of theirs
  /// comes out of the next save_state(), load_state() or wait_for_checkpoint(), on all ranks.
  bool async = false;
  WhenBusy when_busy = WhenBusy::wait;
  /// The checkpoint survives a loss of power: every file is brought to the disk before it counts.
  bool durable = true;
  /// All ranks write what they have alike, a part of the files each; else rank 0 (save_on_each_node: one of each
  /// machine) writes it. Models with buffers and registered objects are rank 0's all the same, for the others may have
  /// their own. Good where ranks have disks, or ways to one, of their own.
  bool share_work = false;
  /// Models that are larger are shared out over several files, as save_model() does it: "5GB". Empty: a file each,
  /// which is what Hugging Face Accelerate's load_state() looks for; its load_checkpoint_in_model() takes both.
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
  /// Waits for a save under way; its error, if nobody has seen it, is a line of the log.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// To be called before save(). False: nothing is to be saved now, because the one before is still being written.
  /// Throws the error of that one.
  [[nodiscard]] bool ready(const SaveOptions& options);
  /// Throws Error (io, usage) on every rank where one of them could not do its part: what was in the place is there
  /// still.
  void save(const Content& content, const SaveRequest& request);
  /// Until the save under way, if there is one, is done. Throws its error.
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
  std::optional<comm::Group> node_{};  // the ranks of this machine, once they are asked for
  std::unique_ptr<Background> background_;
  Content buffers_;
};

}  // namespace accelerate::checkpoint

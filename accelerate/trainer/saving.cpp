// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a training, and the weights of its best evaluation.
#include <algorithm>
#include <cerrno>
#include <exception>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <sstream>
#include <system_error>
#include <typeinfo>

#include "accelerate/base/log.hpp"
#include "accelerate/trainer/saved_state.hpp"
#include "accelerate/trainer/trainer_base.hpp"

namespace accelerate::trainer {

namespace fs = std::filesystem;

namespace {

/// Calls run() on this rank. If it throws on any rank, all ranks throw. Collective.
void together(const Accelerator& accelerator, ErrorKind kind, std::string_view operation,
              const std::function<void()>& run) {
  std::exception_ptr failure;
  std::string text;
  try {
    run();
  } catch (const std::exception& error) {
    failure = std::current_exception();
    text = error.what();
  }
  const auto all = accelerator.use_distributed() ? accelerator.gather_object(text) : std::vector<std::string>();
  if (failure) std::rethrow_exception(failure);
  for (const auto& message : all) {
    if (!message.empty()) base::fail(kind, accelerator.place(), operation, "{}", message);
  }
}

bool holds_something(const fs::path& folder) {
  std::error_code ignored;
  return fs::is_directory(folder, ignored) && !fs::is_empty(folder, ignored);
}

bool is_inside(const fs::path& inner, const fs::path& outer) {
  std::error_code ignored;
  const auto way = fs::weakly_canonical(inner, ignored).lexically_relative(fs::weakly_canonical(outer, ignored));
  return !way.empty() && *way.begin() != "..";
}

constexpr std::string_view kBestMark = "best_";  // prefix of the best evaluation's model files in a checkpoint

/// Returns the files in the folder with this prefix, by name.
std::map<std::string, fs::path> files_in(const fs::path& folder, std::string_view begin) {
  std::map<std::string, fs::path> files;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(begin) && entry.is_regular_file()) files.emplace(name, entry.path());
  }
  return files;
}

std::string file_contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) {
    base::fail(ErrorKind::io, {}, "load_best_model_at_end", "{} cannot be read: {}", path.string(),
               std::generic_category().message(errno));
  }
  return bytes;
}

/// Returns names, sizes and hashes of a model's files, to compare folders. Empty if the folder has no such files.
std::string write_stamp_of(const fs::path& folder) {
  std::string write_stamp;
  for (const auto& [name, path] : files_in(folder, "model")) {
    const std::string bytes = file_contents(path);
    write_stamp += fmt::format("{} {} {:x}\n", name, bytes.size(), std::hash<std::string>{}(bytes));
  }
  return write_stamp;
}

/// Replaces the folder's model files. A process that has an old file open keeps the old content.
void replace_files(const fs::path& folder, const std::map<std::string, std::string>& files, const RankContext& place) {
  const auto refuse = [&](const fs::path& path, const char* what, const std::string& reason) {
    base::fail(ErrorKind::io, place, "load_best_model_at_end",
               "{} cannot be {}: {}; the best weights of the main process must be written there", path.string(), what,
               reason);
  };
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) refuse(folder, "made", failed.message());
  for (const auto& [name, path] : files_in(folder, "model")) {
    if (!files.contains(name)) fs::remove(path);
  }
  for (const auto& [name, bytes] : files) {
    const fs::path making = folder / ("." + name);
    std::ofstream file(making, std::ios::binary | std::ios::trunc);
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    file.close();
    if (!file) refuse(making, "written", std::generic_category().message(errno));
    fs::rename(making, folder / name);
  }
}

/// Gives the bytes a second name and replaces an existing file. A hard link is safe because weights files are never
/// modified in place; if the file system refuses links, the file is copied.
void link_or_copy(const fs::path& from, const fs::path& to) {
  fs::remove(to);
  std::error_code refused;
  fs::create_hard_link(from, to, refused);
  if (refused) fs::copy_file(from, to);
}

}  // namespace

/// The Trainer's part of a checkpoint.
struct TrainerBase::SavedPart {
  TrainerState* of;
  const TrainerControl* control;
  bool stopped = false;  ///< from the loaded checkpoint

  // At max_steps the arguments end the training, not a callback. A resume with a larger max_steps continues.
  [[nodiscard]] std::string state() const {
    return saved(*of, control->should_training_stop && of->global_step < of->max_steps);
  }
  void load_state(const std::string& text) { stopped = load_trainer_state(*of, text); }
};

/// States of the callbacks. They are restored after on_train_begin, which resets the callbacks.
struct TrainerBase::SavedCallbacks {
  using StateDict = TrainerCallback::StateDict;
  const std::vector<std::shared_ptr<TrainerCallback>>* of;
  StateDict loaded{};

  /// Calls use(callback, prefix) for each callback. The prefix has its type and its index among the callbacks of that
  /// type.
  template <typename Use>
  void each(const Use& use) const {
    std::map<std::string, int> seen;
    for (const auto& callback : *of) {
      TrainerCallback& one = *callback;
      const std::string type = typeid(one).name();
      use(one, fmt::format("{}.{}/", type, seen[type]++));
    }
  }
  [[nodiscard]] StateDict state_dict() const {
    StateDict all;
    each([&](const TrainerCallback& callback, const std::string& prefix) {
      for (const auto& item : callback.state_dict()) all.insert(prefix + item.key(), item.value());
    });
    return all;
  }
  void load_state_dict(const StateDict& saved) { loaded = saved; }
  void restore_states() {
    each([&](TrainerCallback& callback, const std::string& prefix) {
      StateDict own;
      for (const auto& item : loaded) {
        if (item.key().starts_with(prefix)) own.insert(item.key().substr(prefix.size()), item.value());
      }
      if (!own.is_empty()) callback.load_state_dict(own);
    });
    loaded.clear();
  }
};

void TrainerBase::register_state() {
  saved_part_ = std::make_shared<SavedPart>(&state_, &control_);
  saved_callbacks_ = std::make_shared<SavedCallbacks>(&callbacks_);
  accelerator_.register_for_checkpointing(*saved_part_, *saved_callbacks_);
  accelerator_.register_save_state_pre_hook([this](const fs::path& making) { load_best_weights(making); });
}

/// Refuses an output_dir with checkpoints or weights of another run, which this run would remove or mistake for its
/// own.
void TrainerBase::check_output_dir() const {
  const bool saves = arguments_.save_strategy != IntervalStrategy::no;
  if (has_saved_ || !(saves || arguments_.load_best_model_at_end)) return;
  together(accelerator_, ErrorKind::usage, "train", [&] {
    const fs::path& output = arguments_.output_dir;
    if (arguments_.resume_from_checkpoint && is_inside(*arguments_.resume_from_checkpoint, output)) return;
    if (saves && holds_something(output / "checkpoints")) {
      base::fail(ErrorKind::usage, accelerator_.place(), "train",
                 "{} contains checkpoints of another run; set resume_from_checkpoint to continue it, or use another "
                 "output_dir",
                 (output / "checkpoints").string());
    }
    if (arguments_.load_best_model_at_end && holds_something(output / "best_model")) {
      base::fail(ErrorKind::usage, accelerator_.place(), "train",
                 "{} holds the best weights of another run; set another output_dir, or remove it",
                 (output / "best_model").string());
    }
  });
}

/// Loads the requested checkpoint. After a completed train() it is not loaded again, because the next train() would
/// repeat its steps.
void TrainerBase::resume() {
  saved_callbacks_->loaded.clear();  // from a load_state() of the program
  if (!arguments_.resume_from_checkpoint || has_trained_) return;
  fs::path folder = *arguments_.resume_from_checkpoint;
  std::error_code none;
  const bool holds_some = fs::is_directory(folder / "checkpoints", none);
  // The main process decides, because its disk may be the only one with the folder.
  if (accelerator_.broadcast_object(holds_some ? "1" : "0") == "1") folder /= "checkpoints";
  copy_best_weights(accelerator_.load_state(folder).path);
  control_.should_training_stop = saved_part_->stopped;
}

void TrainerBase::restore_callback_state() { saved_callbacks_->restore_states(); }

void TrainerBase::save_checkpoint() {
  static_cast<void>(accelerator_.save_state());
  has_saved_ = true;
  fire(&TrainerCallback::on_save);
}

void TrainerBase::keep_best() {
  if (!arguments_.load_best_model_at_end) return;
  save_weights(arguments_.output_dir / "best_model");
  has_saved_ = true;
}

/// Adds the best weights so far to a checkpoint, so that it has the weights of best_metric without output_dir.
void TrainerBase::load_best_weights(const fs::path& checkpoint) const {
  const bool saves =
      arguments_.save_on_each_node ? accelerator_.is_local_main_process() : accelerator_.is_main_process();
  if (!arguments_.load_best_model_at_end || !state_.best_metric || !saves) return;
  for (const auto& [name, path] : files_in(arguments_.output_dir / "best_model", "model")) {
    link_or_copy(path, checkpoint / (std::string(kBestMark) + name));
  }
}

/// Replaces output_dir/best_model by the checkpoint's best weights. If the checkpoint has none, the best metric is
/// reset.
void TrainerBase::copy_best_weights(const fs::path& checkpoint) {
  if (!arguments_.load_best_model_at_end || !state_.best_metric) return;
  std::string found;
  together(accelerator_, ErrorKind::io, "resume_from_checkpoint", [&] {
    if (!accelerator_.is_main_process()) return;
    const auto files = files_in(checkpoint, std::string(kBestMark) + "model");
    if (files.empty()) return;
    found = "found";
    const fs::path folder = arguments_.output_dir / "best_model";
    fs::create_directories(folder);
    for (const auto& [name, path] : files_in(folder, "model")) fs::remove(path);
    for (const auto& [name, path] : files) link_or_copy(path, folder / name.substr(kBestMark.size()));
  });
  if (accelerator_.use_distributed()) found = accelerator_.broadcast_object(found);
  if (!found.empty()) {
    has_saved_ = true;
    if (arguments_.save_on_each_node) share_best();  // for the next checkpoints of each machine
    return;
  }
  if (accelerator_.is_main_process()) {
    base::log(base::LogLevel::warning, accelerator_.place(),
              "resume_from_checkpoint: {} has no weights of its best evaluation, after step {}: it was saved without "
              "load_best_model_at_end; only the best of the following evaluations will be loaded",
              checkpoint.string(), state_.best_global_step);
  }
  state_.best_metric.reset();
  state_.best_global_step = 0;
}

/// Sends the main process's output_dir/best_model to machines with separate disks that have none or an older one.
/// Collective.
void TrainerBase::share_best() const {
  if (!accelerator_.use_distributed()) return;
  const fs::path folder = arguments_.output_dir / "best_model";
  std::error_code none;
  const std::string disk = base::host_name() + ":" + fs::weakly_canonical(fs::absolute(folder, none), none).string();
  const auto disks = accelerator_.gather_object(disk);
  if (std::ranges::count(disks, disks.front()) == std::ssize(disks)) return;
  const bool looks = std::ranges::find(disks, disk) - disks.begin() == accelerator_.process_index();
  std::string here;
  together(accelerator_, ErrorKind::io, "load_best_model_at_end", [&] {
    if (looks) here = write_stamp_of(folder);
  });
  const std::string wanted = accelerator_.broadcast_object(here);
  const bool lacks = looks && here != wanted;
  const auto all = accelerator_.gather_object(lacks ? "lacks" : "");
  if (std::ranges::count(all, "lacks") == 0) return;
  std::map<std::string, std::string> files;  // bytes by name
  together(accelerator_, ErrorKind::io, "load_best_model_at_end", [&] {
    if (!accelerator_.is_main_process()) return;
    for (const auto& [name, path] : files_in(folder, "model")) files.emplace(name, file_contents(path));
  });
  std::string names;
  for (const auto& [name, bytes] : files) names += name + "\n";
  std::istringstream each(accelerator_.broadcast_object(names));
  for (std::string name; std::getline(each, name);) {
    const std::string bytes = accelerator_.broadcast_object(files[name]);
    files[name].clear();
    if (lacks) files[name] = bytes;
  }
  together(accelerator_, ErrorKind::io, "load_best_model_at_end", [&] {
    if (lacks) replace_files(folder, files, accelerator_.place());
  });
}

void TrainerBase::restore_best_model() {
  if (!arguments_.load_best_model_at_end || !state_.best_metric) return;
  share_best();
  load_weights(arguments_.output_dir / "best_model");
}

void TrainerBase::save_model(const fs::path& folder) {
  if (folder.empty() && arguments_.output_dir.empty()) {
    base::fail(ErrorKind::usage, accelerator_.place(), "save_model",
               "no folder is given and output_dir is empty; give one of them");
  }
  save_weights(folder.empty() ? arguments_.output_dir : folder);
}

}  // namespace accelerate::trainer

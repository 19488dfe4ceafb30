// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/checkpoint_folder.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "accelerate/archive/lock_support.hpp"
#include "accelerate/archive/mapped_file.hpp"
#include "accelerate/archive/sink.hpp"
#include "accelerate/base/remove_tree.hpp"

namespace accelerate::archive {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTemporaryMarker = ".saving-", kOldMarker = "-old", kRemovedMarker = "old-";
constexpr std::string_view kCheckpointPrefix = "checkpoint_";
// Every checkpoint of Hugging Face Accelerate has this file, and none has a manifest.
constexpr std::string_view kRandomStatesFile = "random_states_0.pkl";

[[noreturn]] void fail(std::string_view operation, const fs::path& path, std::string_view what) {
  base::fail(ErrorKind::io, {}, operation, "{} {}: {}", path.string(), what, std::strerror(errno));
}

base::FileDescriptor open_to_read(const fs::path& path) {
  return base::FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
}

fs::path parent_of(const fs::path& place) { return place.has_parent_path() ? place.parent_path() : fs::path("."); }

std::optional<int64_t> number_of(const std::string& name) {
  if (!name.starts_with(kCheckpointPrefix)) return std::nullopt;
  int64_t number = 0;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + kCheckpointPrefix.size(), end, number);
  return error == std::errc() && stop == end && number >= 0 ? std::optional(number) : std::nullopt;
}

// Locks a file in the folder, because network file systems lock nothing else. Returns no descriptor if the file is
// missing or locked elsewhere.
base::FileDescriptor acquire_lock(const fs::path& folder, int flags) {
  base::FileDescriptor lock(::open((folder / kLockName).c_str(), O_RDWR | O_CLOEXEC | flags, 0666));
  if (lock && ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) lock.reset();
  return lock;
}

// Locks the parent while a process checks it and creates a folder, because a new folder without a lock looks like a
// leftover. Gives up after 1 s, because another program may hold the parent for other reasons.
base::FileDescriptor rename_into_place(const fs::path& parent) {
  auto turn = open_to_read(parent);
  for (int tries = 0; turn && ::flock(turn.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK && tries < 200;
       ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return turn;
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(fs::symlink_status(path, error));
}

// Names beside the final path: "NAME.saving-0a1b2c3d" for an unfinished folder, "NAME.saving-0a1b2c3d-old" for the
// previous one that was moved aside, "NAME.saving-old-0a1b2c3d" for one that is being removed.
std::string beside(const std::string& name, std::string_view kind = "") {
  std::random_device random;
  return fmt::format("{}{}{}{:08x}", name, kTemporaryMarker, kind, random());
}

bool consists_of(std::string_view text, std::string_view characters) {
  return !text.empty() && text.find_first_not_of(characters) == std::string_view::npos;
}

// True for the text after ".saving-" in names of this library. Folders with other texts there are never touched.
bool is_ending_of_ours(std::string_view ending) {
  constexpr std::string_view hexadecimal = "0123456789abcdef";
  if (ending.starts_with(kRemovedMarker)) return consists_of(ending.substr(kRemovedMarker.size()), hexadecimal);
  if (ending.ends_with(kOldMarker)) ending.remove_suffix(kOldMarker.size());
  return ending.size() == 8 && consists_of(ending, hexadecimal);
}

// The intended name of an unfinished folder or of its remains.
std::optional<std::string> temporary_name(const fs::path& path) {
  const std::string name = path.filename().string();
  const size_t mark = name.rfind(kTemporaryMarker);
  if (mark == std::string::npos || !is_folder(path)) return std::nullopt;
  if (!is_ending_of_ours(std::string_view(name).substr(mark + kTemporaryMarker.size()))) return std::nullopt;
  return name.substr(0, mark);
}

// The folder is being removed: no process writes to it, with or without locks on the file system.
bool is_removed(const fs::path& path) {
  const std::string name = path.filename().string();
  const size_t mark = name.rfind(kTemporaryMarker);
  return mark != std::string::npos &&
         name.compare(mark + kTemporaryMarker.size(), kRemovedMarker.size(), kRemovedMarker) == 0;
}

// True if no process holds the lock, because the process that created the folder is gone.
bool is_leftover(const fs::path& path) {
  std::error_code error;
  return temporary_name(path) && (acquire_lock(path, 0) || !fs::exists(path / kLockName, error));
}

// Exchanges two names, so that both exist at any time. If the file system cannot do that (NFS), the old folder is moved
// aside first.
void exchange(const fs::path& made, const fs::path& place, std::string_view operation) {
  if (::renameat2(AT_FDCWD, made.c_str(), AT_FDCWD, place.c_str(), RENAME_EXCHANGE) == 0) return;
  const auto refuse = [&] { fail(operation, made, fmt::format("cannot be renamed to {}", place.string())); };
  if (errno != EINVAL && errno != ENOSYS) refuse();
  const fs::path aside = made.string() + std::string(kOldMarker);
  if (::rename(place.c_str(), aside.c_str()) != 0) refuse();
  if (::rename(made.c_str(), place.c_str()) != 0) {
    const int cause = errno;
    ::rename(aside.c_str(), place.c_str());
    errno = cause;
    refuse();
  }
  if (::rename(aside.c_str(), made.c_str()) != 0) base::remove_tree(aside);
}

// True for names that this library or Hugging Face Accelerate gives to files: "model_1.safetensors",
// "model-00001-of-00002.safetensors".
bool has_checkpoint_name(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 18> names{{{"model", ".safetensors"},
                                                                                 {"model", ".safetensors.index.json"},
                                                                                 {"pytorch_model", ".bin"},
                                                                                 {"pytorch_model", ".bin.index.json"},
                                                                                 {"master_weights", ".safetensors"},
                                                                                 {"optimizer", ".bin"},
                                                                                 {"scheduler", ".bin"},
                                                                                 {"scaler", ".pt"},
                                                                                 {"sampler", ".bin"},
                                                                                 {"dl_state_dict", ".bin"},
                                                                                 {"loader_state", ".bin"},
                                                                                 {"loader_generator", ".bin"},
                                                                                 {"random_states", ".pkl"},
                                                                                 {"custom_checkpoint", ".pkl"},
                                                                                 {"window", ".bin"},
                                                                                 {"comm_hooks", ".bin"},
                                                                                 {"buffers", ".bin"},
                                                                                 {"manifest", ".json"}}};
  return std::any_of(names.begin(), names.end(), [&](const auto& one) {
    if (!name.starts_with(one.first) || !name.ends_with(one.second)) return false;
    if (name.size() < one.first.size() + one.second.size()) return false;
    const auto between = name.substr(one.first.size(), name.size() - one.first.size() - one.second.size());
    return between.find_first_not_of("_-of0123456789") == std::string_view::npos;
  });
}

// Files of a checkpoint folder, and those of another origin: they are not in the manifest or, without a readable
// manifest, do not have a checkpoint file's name.
struct FolderContents {
  std::vector<fs::path> own{}, foreign{};
};
FolderContents list_contents(const fs::path& folder) {
  std::optional<std::set<std::string>> listed;
  try {
    const Manifest manifest = manifest_of(folder, "save_state");
    listed.emplace({std::string(kManifestName)});
    for (const ManifestFile& file : manifest.files) listed->insert(file.name);
  } catch (const Error&) {
    listed.reset();
  }
  FolderContents contents;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name == kLockName) continue;
    const bool is_own = !is_folder(entry.path()) && (listed ? listed->contains(name) : has_checkpoint_name(name));
    (is_own ? contents.own : contents.foreign).push_back(entry.path());
  }
  return contents;
}

// Creates hard links, so that one name survives a crash. Returns true if at least one file was linked.
bool preserve_foreign_files(const fs::path& from, const fs::path& to, std::string_view operation) {
  const auto files = list_contents(from).foreign;
  for (const fs::path& file : files) {
    if (::link(file.c_str(), (to / file.filename()).c_str()) == 0) continue;
    fail(operation, file, "does not belong to the old checkpoint and cannot be linked into the new one; move it");
  }
  return !files.empty();
}

// Repairs the state after a process was killed between moving the old checkpoint aside and moving the new one into
// place. Moves the new folder to the empty path, or the old one if the new one is not complete. Folders that a process
// holds are left alone.
void finish_interrupted(const fs::path& parent, const std::string& name) {
  std::error_code error;
  if (fs::exists(parent / name, error)) return;
  std::vector<fs::path> whole;
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    const bool of_it = temporary_name(entry.path()) == name && is_leftover(entry.path());
    if (of_it && entry.path().string().ends_with(kOldMarker)) whole.push_back(entry.path());
  }
  for (const fs::path& old : whole) {
    const std::string path = old.string();
    const fs::path made = path.substr(0, path.size() - kOldMarker.size());
    if (fs::exists(made, error) && !is_leftover(made)) return;  // still being written
    const fs::path& better = find_damage(made, false) ? old : made;
    if (::rename(better.c_str(), (parent / name).c_str()) != 0) continue;
    ::unlink((parent / name / kLockName).c_str());
    return;
  }
}

}  // namespace

std::vector<fs::path> make_folders(const fs::path& folder) {
  std::vector<fs::path> made_in;
  std::error_code error;
  for (fs::path path = folder; !path.empty() && !fs::exists(path, error); path = path.parent_path()) {
    made_in.push_back(parent_of(path));
  }
  fs::create_directories(folder, error);
  return error ? std::vector<fs::path>{} : made_in;
}

void sync_to_disk(const fs::path& path, std::string_view operation) {
  const auto open = open_to_read(path);
  if (!open || ::fsync(open.get()) != 0) fail(operation, path, "cannot be brought to the disk");
}

// Other programs also have files of this name: web apps, browser extensions, packagers.
bool has_own_manifest(const fs::path& folder) {
  std::error_code error;
  if (!fs::is_regular_file(folder / kManifestName, error)) return false;  // reading a pipe would block
  std::string beginning(64, '\0');
  std::ifstream file(folder / kManifestName, std::ios::binary);
  file.read(beginning.data(), static_cast<std::streamsize>(beginning.size()));
  beginning.resize(static_cast<size_t>(file.gcount()));
  return starts_like_manifest(beginning);
}

std::optional<std::string> not_a_checkpoint_reason(const fs::path& place) {
  std::error_code error;
  if (has_own_manifest(place) || fs::exists(place / kRandomStatesFile, error)) return std::nullopt;
  const std::string_view reason = fs::exists(place / kManifestName, error) ? "another program wrote its" : "it has no";
  return fmt::format("{} exists and is not a checkpoint ({} {})", place.string(), reason, kManifestName);
}

void check_replaceable(const fs::path& place, std::string_view operation) {
  std::error_code error;
  if (!fs::exists(place, error) || (fs::is_directory(place, error) && fs::is_empty(place, error))) return;
  if (const auto reason = not_a_checkpoint_reason(place)) {
    base::fail(ErrorKind::usage, {}, operation, "{}, so it is not replaced; save to another place, or remove it",
               *reason);
  }
  for (const fs::path& other : list_contents(place).foreign) {
    if (!is_folder(other)) continue;
    base::fail(
        ErrorKind::usage, {}, operation,
        "{} exists and has a folder that does not belong to the checkpoint ({}) and would be lost with it; save to "
        "another place, or move it",
        place.string(), other.filename().string());
  }
}

AtomicFolder::AtomicFolder(fs::path place, std::string_view operation)
    : place_(std::move(place)), operation_(operation) {
  const fs::path parent = parent_of(place_);
  check_replaceable(place_, operation_);
  created_parents_ = make_folders(parent);
  const auto turn = rename_into_place(parent);
  finish_interrupted(parent, place_.filename().string());
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    if (temporary_name(entry.path()) != place_.filename().string()) continue;
    if (is_leftover(entry.path())) {
      base::remove_tree(entry.path());
    } else {
      base::fail(ErrorKind::usage, {}, operation_, "{} is being saved to by another process ({} is incomplete)",
                 place_.string(), entry.path().string());
    }
  }
  // Not mkdtemp(), because it creates folders for their owner only. The system applies the umask, which is
  // process-wide.
  int made = 0;
  do {
    path_ = parent / beside(place_.filename().string());
    made = ::mkdir(path_.c_str(), 0777);
  } while (made != 0 && errno == EEXIST);
  if (made != 0) fail(operation_, parent, "cannot contain a new folder");
  lock_ = acquire_lock(path_, O_CREAT);
  if (lock_) return;
  if (!locks_unsupported(errno)) fail(operation_, path_, "cannot be held");
  ::unlink((path_ / kLockName).c_str());  // otherwise the remains of a killed process would look locked forever
}

AtomicFolder::~AtomicFolder() {
  if (path_.empty()) return;
  lock_.reset();  // network file systems keep an open file under another name, and so the folder
  base::remove_tree(path_);
}

void AtomicFolder::commit(const Manifest& manifest, bool durable) {
  FileSink sink(path_ / kManifestName, operation_);
  sink.write(write_manifest(manifest));
  sink.finish(durable);
  if (durable) {
    sync_to_disk(path_, operation_);
    for (const fs::path& folder : created_parents_) sync_to_disk(folder, operation_);
  }
  // After the exchange the old folder is removed under the new one's former name.
  const bool replaces = fs::exists(place_);
  if (replaces) {
    check_replaceable(place_, operation_);
    if (preserve_foreign_files(place_, path_, operation_) && durable) sync_to_disk(path_, operation_);
    exchange(path_, place_, operation_);
  } else if (::rename(path_.c_str(), place_.c_str()) != 0) {
    fail(operation_, path_, fmt::format("cannot be renamed to {}", place_.string()));
  }
  const fs::path old = std::exchange(path_, {});
  lock_.reset();
  ::unlink((place_ / kLockName).c_str());
  if (durable) sync_to_disk(parent_of(place_), operation_);
  if (replaces) base::remove_tree(old);
}

void remove_leftovers(const fs::path& parent) {
  const auto turn = open_to_read(parent);
  // If another process holds the lock, the next save removes the rest.
  const bool is_alone = turn && ::flock(turn.get(), LOCK_EX | LOCK_NB) == 0;
  std::vector<fs::path> gone;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    const auto name = temporary_name(entry.path());
    if (!name || !number_of(*name)) continue;
    if (is_removed(entry.path())) gone.push_back(entry.path());
    if (is_removed(entry.path()) || !is_alone || !is_leftover(entry.path())) continue;
    // If the final path does not exist, one of these two folders is the checkpoint.
    const bool stands_aside = entry.path().string().ends_with(kOldMarker) ||
                              fs::exists(entry.path().string() + std::string(kOldMarker), error);
    if (!stands_aside || fs::exists(parent / *name, error)) gone.push_back(entry.path());
  }
  for (const fs::path& folder : gone) base::remove_tree(folder);
}

std::vector<fs::path> remove_checkpoint(const fs::path& folder) {
  const FolderContents contents = list_contents(folder);
  if (contents.foreign.empty()) {
    // Renamed first, so that a kill leaves a leftover instead of an incomplete checkpoint.
    const fs::path aside = parent_of(folder) / beside(folder.filename().string(), kRemovedMarker);
    if (::rename(folder.c_str(), aside.c_str()) == 0) base::remove_tree(aside);
    return {};
  }
  // The files that identify the folder as a checkpoint are removed last: until then the next save removes the rest.
  std::vector<fs::path> last;
  std::error_code error;
  for (const fs::path& file : contents.own) {
    const bool is_mark = file.filename() == kManifestName || file.filename() == kRandomStatesFile;
    if (is_mark) last.push_back(file);
    if (!is_mark) fs::remove(file, error);
  }
  std::sort(last.begin(), last.end(), std::greater<>());  // the manifest is last
  for (const fs::path& file : last) fs::remove(file, error);
  return contents.foreign;
}

Manifest manifest_of(const fs::path& folder, std::string_view operation) {
  const fs::path path = folder / kManifestName;
  const MappedFile file(path, operation);
  return parse_manifest_file(file.text(), {.path = path.string(), .operation = std::string(operation)});
}

std::optional<std::string> find_file_damage(const ManifestFile& listed, const fs::path& folder, bool verify) {
  std::error_code error;
  const auto bytes = fs::file_size(folder / listed.name, error);
  if (error) return fmt::format("{} is missing", listed.name);
  if (bytes != listed.bytes) return fmt::format("{} has {} bytes, expected {}", listed.name, bytes, listed.bytes);
  if (!verify) return std::nullopt;
  const std::string now = checksum_of(MappedFile(folder / listed.name, "load").text());
  if (now == listed.checksum) return std::nullopt;
  return fmt::format("{} has checksum {}, expected {}: its bytes were changed", listed.name, now, listed.checksum);
}

std::optional<std::string> find_damage(const fs::path& folder, bool verify, const FileShare& share) {
  try {
    const std::vector<ManifestFile> files = manifest_of(folder, "load").files;
    for (size_t i = 0; i < files.size(); ++i) {
      const bool reads = verify && i % share.count == share.index;
      if (auto wrong = find_file_damage(files[i], folder, reads)) return wrong;
    }
    return std::nullopt;
  } catch (const Error& error) {
    return error.what();
  }
}

void recover(const fs::path& place) { finish_interrupted(parent_of(place), place.filename().string()); }

void recover_numbered(const fs::path& parent) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    const auto name = temporary_name(entry.path());
    if (name && number_of(*name) && entry.path().string().ends_with(kOldMarker)) names.insert(*name);
  }
  for (const std::string& name : names) finish_interrupted(parent, name);
}

std::vector<fs::path> numbered_checkpoints(const fs::path& parent) {
  std::vector<std::pair<int64_t, fs::path>> numbered;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(parent, error)) {
    const auto number = number_of(entry.path().filename().string());
    if (number && entry.is_directory(error)) numbered.emplace_back(*number, entry.path());
  }
  std::sort(numbered.begin(), numbered.end(), std::greater<>());
  std::vector<fs::path> folders;
  for (auto& [number, path] : numbered) folders.push_back(std::move(path));
  return folders;
}

NewestComplete newest_complete_checkpoint(const fs::path& parent, std::string_view operation, bool verify) {
  NewestComplete newest;
  for (const fs::path& folder : numbered_checkpoints(parent)) {
    const auto wrong = find_damage(folder, verify);
    if (!wrong) {
      newest.folder = folder;
      return newest;
    }
    newest.skipped_checkpoints.push_back(fmt::format("{}: {}", folder.filename().string(), *wrong));
  }
  base::fail(ErrorKind::io, {}, operation, "no complete checkpoint found in {} ({})", parent.string(),
             newest.skipped_checkpoints.empty() ? "no folder checkpoint_N"
                                                : fmt::format("{}", fmt::join(newest.skipped_checkpoints, "; ")));
}

}  // namespace accelerate::archive

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/checkpoint/save.hpp"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iterator>
#include <limits>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "accelerate/archive/checkpoint_folder.hpp"
#include "accelerate/archive/mapped_file.hpp"
#include "accelerate/archive/sink.hpp"
#include "accelerate/base/exception_text.hpp"
#include "accelerate/base/file_descriptor.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/base/random_id.hpp"
#include "accelerate/checkpoint/collective_error.hpp"
#include "accelerate/checkpoint/file_names.hpp"
#include "accelerate/checkpoint/snapshot.hpp"
#include "accelerate/checkpoint/weights.hpp"
#include "accelerate/checkpoint/write.hpp"
#include "accelerate/comm/error_context.hpp"

namespace accelerate::checkpoint {

using archive::Manifest;
using base::capture_exception;

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr std::string_view kSaveOperation = "save_state";

void append(Manifest& whole, Manifest part) {
  std::move(part.files.begin(), part.files.end(), std::back_inserter(whole.files));
  for (auto& one : part.parts) add_part(whole, std::move(one));
  std::move(part.ranges.begin(), part.ranges.end(), std::back_inserter(whole.ranges));
}

// Returns the text of rank 0 of the group.
std::string of_leader(const comm::Group& group, const std::string& text) {
  return comm::with_operation_context(kSaveOperation, "the leading rank's result is unknown", group.place(),
                                      [&] { return group.broadcast_bytes(text); });
}

uint64_t max_bytes(const SaveOptions& options) {
  if (options.max_shard_size.empty()) return std::numeric_limits<uint64_t>::max();
  return parse_size(options.max_shard_size, kSaveOperation);
}

// A rank's part as text and back; only this library writes and reads it.
Manifest part_from(const std::string& text) {
  return archive::parse_manifest_file(text, {"a rank's part", "save_state"});
}

}  // namespace

/// This rank's view of a checkpoint that is being saved.
struct CheckpointWriter::CheckpointInProgress {
  comm::Group node;    // ranks that write to the same folder; its rank 0 leads
  bool is_all = true;  // false if other machines write to other folders
  fs::path place, folder;
  std::unique_ptr<archive::AtomicFolder> save_lock;  // on the leader
  Manifest manifest;                                 // on the leader
  Part part;
  std::optional<int64_t> total_limit;
  bool durable = true;
  base::FileDescriptor working;  // see work()

  [[nodiscard]] bool is_leader() const { return node.rank() == 0; }

  // Called on the leader when all parts are complete.
  void commit(const std::vector<std::string>& parts) {
    for (const std::string& text : parts) append(manifest, part_from(text));
    add_foreign_files(folder, manifest, durable, kSaveOperation);
    save_lock->commit(manifest, durable);
  }

  // Called when the checkpoint is complete on all machines. The leader removes checkpoints above the limit. It also
  // removes the remains of killed processes, even without a limit.
  void clean_up() const {
    if (!is_leader()) return;
    if (total_limit) remove_older();
    archive::remove_leftovers(place.parent_path());
  }
  void remove_older() const {
    auto older = archive::numbered_checkpoints(place.parent_path());
    std::erase(older, place);  // another job may have left higher numbers on this machine
    for (auto i = static_cast<size_t>(*total_limit) - 1; i < older.size(); ++i) remove_old(older[i]);
  }
  // A user's folder can have such a name, and a checkpoint folder can contain user files.
  static void remove_old(const fs::path& folder) {
    const auto reason =
        fs::is_symlink(folder) ? folder.string() + " is a link" : archive::not_a_checkpoint_reason(folder).value_or("");
    if (!reason.empty()) {
      base::log_once(base::LogLevel::warning, {}, "save_state: total_limit does not remove it: {}", reason);
      return;
    }
    for (const fs::path& other : archive::remove_checkpoint(folder)) {
      base::log(base::LogLevel::warning, {}, "save_state: total_limit removed the checkpoint in {}, {} is not of it",
                folder.string(), other.filename().string());
    }
  }

  // Ranks do not communicate in an asynchronous save. Each rank writes its part into the folder and holds a lock until
  // then. The system releases the lock when the process ends, so the leader does not wait for a dead rank.
  [[nodiscard]] fs::path done_file(int64_t rank) const { return folder / fmt::format(".part_{}", rank); }
  [[nodiscard]] fs::path work_file(int64_t rank) const { return folder / fmt::format(".working_{}", rank); }
  void work() {
    const auto path = work_file(node.rank());
    working.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (working && ::flock(working.get(), LOCK_EX | LOCK_NB) == 0) return;
    fs::remove(path);  // no locks on this file system: only the timeout applies
  }
  // Unlocks explicitly, because a child process that was forked meanwhile has the file open as well.
  void stop_work() {
    if (working) ::flock(working.get(), LOCK_UN);
    working.reset();
  }
  [[nodiscard]] bool has_exited(int64_t rank) const {
    const base::FileDescriptor file(::open(work_file(rank).c_str(), O_RDWR | O_CLOEXEC));
    return file && ::flock(file.get(), LOCK_EX | LOCK_NB) == 0 && !fs::exists(done_file(rank));
  }
  [[nodiscard]] bool is_writing(int64_t rank) const {
    const base::FileDescriptor file(::open(work_file(rank).c_str(), O_RDWR | O_CLOEXEC));
    return file && ::flock(file.get(), LOCK_EX | LOCK_NB) != 0;
  }
  // The rename is a rank's last access to the folder, because the leader may rename the folder as soon as the file
  // exists.
  void write_part(const std::string& text) const {
    const fs::path path = done_file(node.rank()), made = path.string() + ".saving";
    archive::FileSink sink(made, kSaveOperation);
    sink.write(text);
    sink.finish(/*durable=*/false);  // this save reads and removes it
    fs::rename(made, path);
  }
  [[nodiscard]] std::vector<std::string> take_parts() const {
    std::vector<std::string> parts;
    const auto deadline = std::chrono::steady_clock::now() + node.timeout();
    for (int64_t rank = 0; rank < node.size(); ++rank) {
      // The rank's file is still open for a moment. Removed then, it would stay under another name on a network file
      // system.
      while (!fs::exists(done_file(rank)) || is_writing(rank)) {
        if (has_exited(rank)) {
          base::fail(ErrorKind::peer, node.place(), kSaveOperation,
                     "rank {} of those that write to {} ended before it had written its part", rank, place.string());
        }
        if (std::chrono::steady_clock::now() > deadline) {
          base::fail(ErrorKind::peer, node.place(), kSaveOperation,
                     "rank {} of those that write to {} has not written its part after {} s", rank, place.string(),
                     std::chrono::duration_cast<std::chrono::seconds>(node.timeout()).count());
        }
        std::this_thread::sleep_for(2ms);
      }
      parts.emplace_back(archive::MappedFile(done_file(rank), kSaveOperation).text());
      if (parts.back().starts_with('!')) {
        base::fail(ErrorKind::io, node.place(), kSaveOperation, "another rank failed: {}", parts.back().substr(1));
      }
    }
    for (int64_t rank = 0; rank < node.size(); ++rank) {
      fs::remove(done_file(rank));
      fs::remove(work_file(rank));
    }
    return parts;
  }
};

struct CheckpointWriter::BackgroundWriter {
  std::unique_ptr<CheckpointInProgress> making;
  Snapshot copy;
  std::exception_ptr failure;
  std::atomic<bool> done{false};
  std::jthread thread;

  void end() {
    if (thread.joinable()) thread.join();
  }
  void run() {
    failure = capture_exception([&] {
      Manifest mine;
      const auto failed = capture_exception([&] {
        copy.arrive();
        mine = write_checkpoint_part(making->folder, copy.content, making->part, kSaveOperation);
      });
      if (failed) {
        std::ignore = capture_exception(
            [&] { making->write_part("!" + base::exception_text(failed)); });  // fails if the disk is full
        making->stop_work();
        std::rethrow_exception(failed);
      }
      making->write_part(archive::write_manifest(mine));
      making->stop_work();
      if (!making->is_leader()) return;
      making->commit(making->take_parts());
      if (making->is_all) making->clean_up();
    });
    making->stop_work();
    // Only the leader removes the folder, because other ranks may still be writing to it.
    done = true;
  }
};

CheckpointWriter::CheckpointWriter(comm::Group group) : group_(std::move(group)) {}

CheckpointWriter::~CheckpointWriter() {
  if (!background_) return;
  background_->end();
  if (background_->failure) {
    base::log(base::LogLevel::error, group_.place(), "{}", base::exception_text(background_->failure));
  }
}

bool CheckpointWriter::busy() const {
  // Rank 0 decides for all ranks.
  const bool mine = background_ && !background_->done;
  return group_.size() == 1 ? mine : of_leader(group_, mine ? "1" : "0") == "1";
}

void CheckpointWriter::agree(const std::exception_ptr& mine, std::string_view doing) const {
  checkpoint::rethrow_on_all_ranks(group_, mine, kSaveOperation, doing);
}

bool CheckpointWriter::ready(const SaveOptions& options) {
  if (options.async && options.when_writer_busy == WriterBusyPolicy::skip && busy()) return false;
  wait();
  return true;
}

void CheckpointWriter::save(const CheckpointContent& content, const SaveRequest& request) {
  if (request.total_limit && *request.total_limit < 1) {
    base::fail(ErrorKind::usage, group_.place(), kSaveOperation, "total_limit is {}, must be at least 1",
               *request.total_limit);
  }
  auto making = begin(request);
  agree(capture_exception([&] {
          if (request.options.async) making->work();
          if (request.hook) request.hook(making->folder);
        }),
        "a hook");
  making->manifest = {.library = std::string(library()),
                      .world_size = group_.size(),
                      .step = content.step,
                      .epoch = content.epoch,
                      .mesh = request.mesh};
  // Folders of the same name on several machines can be from different saves.
  if (!making->is_all) making->manifest.id = of_leader(group_, base::random_id());
  if (request.options.async) {
    save_beside(content, std::move(making));
  } else {
    save_now(content, *making);
  }
}

std::unique_ptr<CheckpointWriter::CheckpointInProgress> CheckpointWriter::begin(const SaveRequest& request) {
  auto making = std::make_unique<CheckpointInProgress>();
  making->node = group_;
  if (request.on_each_node && group_.size() > 1) {
    if (!node_) {
      comm::with_operation_context(kSaveOperation, "the ranks of a machine did not synchronise", group_.place(), [&] {
        const auto hosts = group_.all_gather_bytes(base::host_name());
        const auto first = std::find(hosts.begin(), hosts.end(), base::host_name());
        node_ = group_.split(first - hosts.begin());
      });
    }
    making->node = *node_;
    making->is_all = node_->size() == group_.size();
  }
  making->place = fs::absolute(request.place);  // the program may change its working directory
  making->durable = request.options.durable;
  making->total_limit = request.total_limit;
  making->part = {.rank = group_.rank(),
                  .writer = request.options.share_work ? making->node.rank()
                            : making->is_leader()      ? 0
                                                       : -1,
                  .writers = request.options.share_work ? making->node.size() : 1,
                  .accelerator = request.accelerator,
                  .max_bytes = max_bytes(request.options),
                  .durable = request.options.durable};
  const auto failure = capture_exception([&] {
    if (making->is_leader()) making->save_lock = std::make_unique<archive::AtomicFolder>(making->place, kSaveOperation);
  });
  agree(failure, "the folder");
  const std::string made = making->is_leader() ? making->save_lock->path().string() : "";
  making->folder = making->node.size() == 1 ? made : of_leader(making->node, made);
  return making;
}

void CheckpointWriter::save_now(const CheckpointContent& content, CheckpointInProgress& making) {
  Manifest mine;
  agree(capture_exception([&] {
          if (making.part.accelerator == c10::DeviceType::CPU) {
            mine = write_checkpoint_part(making.folder, content, making.part, kSaveOperation);
            return;
          }
          // All data on the device is copied at once in the order of the current stream, because other threads do not
          // use that stream.
          Snapshot copy = snapshot(content, std::move(buffers_));
          copy.arrive();
          mine = write_checkpoint_part(making.folder, copy.content, making.part, kSaveOperation);
          buffers_ = std::move(copy.content);
        }),
        "writing");
  const std::string text = archive::write_manifest(mine);
  const auto parts = comm::with_operation_context(
      kSaveOperation, "the ranks' parts are not put together", making.node.place(),
      [&] { return making.node.size() == 1 ? std::vector{text} : making.node.gather_bytes(text); });
  agree(capture_exception([&] {
          if (making.is_leader()) making.commit(parts);
        }),
        "the end");
  agree(capture_exception([&] { making.clean_up(); }), "the older ones");
}

void CheckpointWriter::save_beside(const CheckpointContent& content, std::unique_ptr<CheckpointInProgress> making) {
  auto begun = std::make_unique<BackgroundWriter>();
  agree(capture_exception([&] { begun->copy = snapshot(content, std::move(buffers_)); }), "the copy");
  begun->making = std::move(making);
  background_ = std::move(begun);
  try {
    background_->thread = std::jthread([background = background_.get()] { background->run(); });
  } catch (const std::system_error&) {  // other ranks need this rank's part
    background_->run();
  }
}

void CheckpointWriter::wait() {
  if (!background_) return;
  background_->end();
  const auto failure = background_->failure;
  // The leader's folder is in its place. A failed folder is removed after all ranks have ended.
  buffers_ = std::move(background_->copy.content);
  const auto ended = std::move(background_);
  agree(failure, "beside the training");
  if (!ended->making->is_all) agree(capture_exception([&] { ended->making->clean_up(); }), "the older ones");
}

}  // namespace accelerate::checkpoint

// SPDX-License-Identifier: Apache-2.0
// If a process is killed at any step of removing a checkpoint, the next save removes the remains.
#include <doctest/doctest.h>

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "accelerate/archive/checkpoint_folder.hpp"
#include "accelerate/archive/sink.hpp"
#include "tests/killed_call.hpp"
#include "tests/temporary_folder.hpp"

using namespace accelerate::archive;
namespace fs = std::filesystem;

namespace {

// One file of each kind of checkpoint/file_names.hpp.
const std::vector<std::string> files{
    "buffers_1.bin",          "comm_hooks_0.bin",   "custom_checkpoint_0.pkl",    "loader_generator.bin",
    "loader_generator_1.bin", "loader_state_1.bin", "master_weights.safetensors", "model.safetensors",
    "model_1.safetensors",    "optimizer.bin",      "random_states_0.pkl",        "scaler.pt",
    "scheduler.bin",          "window_0.bin"};

void save(const fs::path& place) {
  AtomicFolder folder(place, "save_state");
  Manifest manifest{.library = "test"};
  for (const auto& name : files) {
    FileSink sink(folder.path() / name, "save_state");
    sink.write(name);
    sink.finish();
    manifest.files.push_back({name, sink.written(), sink.checksum()});
  }
  folder.commit(manifest);
}

/// Saves without a manifest, as Hugging Face Accelerate does.
void save_without_manifest(const fs::path& place) {
  fs::create_directories(place);
  for (const auto& name : files) std::ofstream(place / name) << name;
}

/// Removes the checkpoints above total_limit (here 0), as a save does.
void clean_up(const fs::path& parent) {
  for (const auto& folder : numbered_checkpoints(parent)) {
    if (!not_a_checkpoint_reason(folder)) remove_checkpoint(folder);
  }
  remove_leftovers(parent);
}

std::set<std::string> paths_in(const fs::path& folder) {
  std::set<std::string> paths;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    paths.insert(entry.path().lexically_relative(folder).string());
  }
  return paths;
}

}  // namespace

TEST_CASE("the next clean-up finishes one that was killed at any of its calls") {
  using Paths = std::set<std::string>;
  for (const bool has_manifest : {true, false}) {
    for (const bool has_other_files : {false, true}) {
      CAPTURE(has_manifest);
      CAPTURE(has_other_files);
      const Paths expected = has_other_files ? Paths{"checkpoint_0", "checkpoint_0/notes.txt"} : Paths{};
      int call = 1;
      for (bool killed = true; killed; ++call) {
        CAPTURE(call);
        const testing::TemporaryFolder at;
        const fs::path place = at.path / "checkpoint_0";
        has_manifest ? save(place) : save_without_manifest(place);
        if (has_other_files) std::ofstream(place / "notes.txt") << "mine";
        killed = testing::killed_at_call(call, [&] { clean_up(at.path); });
        clean_up(at.path);
        CHECK(paths_in(at.path) == expected);
      }
      CHECK(call > static_cast<int>(files.size()));
    }
  }
}

TEST_CASE("the next clean-up finishes a save that was killed while it replaced a checkpoint") {
  int call = 1;
  for (bool killed = true; killed; ++call) {
    CAPTURE(call);
    const testing::TemporaryFolder at;
    save(at.path / "checkpoint_0");
    killed = testing::killed_at_call(call, [&] { save(at.path / "checkpoint_0"); });
    recover_numbered(at.path);
    remove_leftovers(at.path);
    CHECK_FALSE(find_damage(at.path / "checkpoint_0", true));
    std::set<std::string> expected{"checkpoint_0", "checkpoint_0/manifest.json"};
    for (const auto& name : files) expected.insert("checkpoint_0/" + name);
    auto found = paths_in(at.path);
    found.erase("checkpoint_0/.lock");  // remains of a save that was killed while it held its folder
    CHECK(found == expected);
  }
  CHECK(call > static_cast<int>(files.size()));
}

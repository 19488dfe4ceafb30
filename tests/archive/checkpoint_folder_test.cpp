// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/checkpoint_folder.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "accelerate/archive/checksum.hpp"
#include "accelerate/archive/sink.hpp"
#include "accelerate/base/error.hpp"
#include "tests/no_locks.hpp"

using namespace accelerate::archive;
namespace fs = std::filesystem;

namespace {

struct Folder {
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  fs::path path = fs::path(TEST_BINARY_DIR) / "tmp_folder";
};

// Saves a checkpoint with one file.
void save(const fs::path& place, const std::string& content) {
  AtomicFolder folder(place, "save_state");
  FileSink sink(folder.path() / "model.safetensors", "save_state");
  sink.write(content);
  sink.finish();
  folder.commit({.library = "test", .files = {{"model.safetensors", sink.written(), sink.checksum()}}});
}

// Saves in a child process that is killed in between. An exception there only ends that process.
void save_and_be_killed(const fs::path& place) noexcept {
  const pid_t killed = ::fork();
  if (killed == 0) {
    const AtomicFolder folder(place, "save_state");
    std::ofstream(folder.path() / "model.safetensors") << "half";
    ::raise(SIGKILL);
  }
  ::waitpid(killed, nullptr, 0);
}

std::string content_of(const fs::path& place) {
  std::ifstream in(place / "model.safetensors");
  return {std::istreambuf_iterator<char>(in), {}};
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

}  // namespace

TEST_CASE("a folder appears on commit, and no temporary files remain") {
  const Folder at;
  save(at.path / "checkpoints" / "checkpoint_0", "zero");
  CHECK(names_in(at.path / "checkpoints") == std::set<std::string>{"checkpoint_0"});
  CHECK(names_in(at.path / "checkpoints" / "checkpoint_0") ==
        std::set<std::string>{"manifest.json", "model.safetensors"});
  CHECK_FALSE(find_damage(at.path / "checkpoints" / "checkpoint_0", true));
}

TEST_CASE("the previous folder exists until it is replaced, and not afterwards") {
  const Folder at;
  save(at.path / "last", "old");
  {
    const AtomicFolder given_up(at.path / "last", "save_state");
    std::ofstream(given_up.path() / "model.safetensors") << "half";
  }
  CHECK(content_of(at.path / "last") == "old");
  save(at.path / "last", "new");
  CHECK(content_of(at.path / "last") == "new");
  CHECK(names_in(at.path) == std::set<std::string>{"last"});
}

TEST_CASE("the second of two writers of one folder throws, and remains of a killed writer are removed") {
  const Folder at;
  save_and_be_killed(at.path / "last");
  CHECK(names_in(at.path).size() == 1);
  {
    const AtomicFolder first(at.path / "last", "save_state");
    CHECK(names_in(at.path) == std::set<std::string>{first.path().filename().string()});
    CHECK_THROWS_WITH(AtomicFolder(at.path / "last", "save_state"),
                      ("save_state: " + (at.path / "last").string() + " is being saved to by another process (" +
                       first.path().string() + " is incomplete)")
                          .c_str());
    remove_leftovers(at.path);
    CHECK(fs::exists(first.path()));
  }
  CHECK(names_in(at.path).empty());
}

TEST_CASE("a checkpoint is saved without file locks, also after a killed save") {
  for (const int error : {ENOSYS, ENOLCK, EOPNOTSUPP}) {
    CAPTURE(error);
    const Folder at;
    const testing::NoLocks no_locks(error);
    save_and_be_killed(at.path / "last");
    CHECK(names_in(at.path).size() == 1);
    save(at.path / "last", "whole");
    CHECK(content_of(at.path / "last") == "whole");
    CHECK(names_in(at.path) == std::set<std::string>{"last"});
    CHECK(names_in(at.path / "last") == std::set<std::string>{"manifest.json", "model.safetensors"});
  }
}

TEST_CASE("a folder that cannot be created is reported with the reason") {
  CHECK_THROWS_WITH(AtomicFolder("/proc/here/last", "save_state"),
                    "save_state: /proc/here cannot contain a new folder: No such file or directory");
}

TEST_CASE("processes that share a folder verify each file once") {
  const Folder at;
  const auto place = at.path / "c";
  constexpr size_t kFiles = 5;
  const auto path = [&](size_t i) { return place / fmt::format("file_{}", i); };
  {
    AtomicFolder folder(place, "save_state");
    std::vector<ManifestFile> files;
    for (size_t i = 0; i < kFiles; ++i) {
      std::ofstream(folder.path() / path(i).filename()) << "0123";
      files.push_back({path(i).filename(), 4, checksum_of("0123")});
    }
    folder.commit({.library = "test", .files = files});
  }
  for (size_t changed = 0; changed < kFiles; ++changed) {
    CAPTURE(changed);
    std::ofstream(path(changed)) << "4567";
    for (size_t count = 1; count <= kFiles + 1; ++count) {
      size_t found = 0;
      for (size_t index = 0; index < count; ++index) {
        if (find_damage(place, true, {.index = index, .count = count})) ++found;
      }
      CHECK(found == 1);
    }
    std::ofstream(path(changed)) << "01234";
    CHECK(find_damage(place, true, {.index = kFiles, .count = kFiles + 1}));  // every process compares all sizes
    std::ofstream(path(changed)) << "0123";
  }
}

TEST_CASE("a missing, cut or changed file or manifest makes a checkpoint incomplete, and the damage is named") {
  const Folder at;
  const auto place = at.path / "checkpoint_1";
  const auto model = place / "model.safetensors";
  save(place, "0123456789");
  std::ofstream(model) << "0123x56789";
  CHECK_FALSE(find_damage(place, false));
  CHECK(find_damage(place, true) == "model.safetensors has checksum " + checksum_of("0123x56789") + ", expected " +
                                        checksum_of("0123456789") + ": its bytes were changed");
  fs::resize_file(model, 9);
  CHECK(find_damage(place, false) == "model.safetensors has 9 bytes, expected 10");
  fs::remove(model);
  CHECK(find_damage(place, false) == "model.safetensors is missing");
  fs::remove(place / "manifest.json");
  CHECK(find_damage(place, false) ==
        "load: " + (place / "manifest.json").string() + " cannot be opened: No such file or directory");
}

TEST_CASE("the newest complete checkpoint is found by number, not by name, and incomplete ones are skipped") {
  const Folder at;
  CHECK_THROWS_WITH(
      newest_complete_checkpoint(at.path, "load_state", true),
      ("load_state: no complete checkpoint found in " + at.path.string() + " (no folder checkpoint_N)").c_str());
  for (const int n : {2, 9, 10, 11}) save(at.path / ("checkpoint_" + std::to_string(n)), "x");
  fs::create_directory(at.path / "checkpoint_99_old");
  std::ofstream(at.path / "checkpoint_100") << "a file";
  fs::remove(at.path / "checkpoint_11" / "model.safetensors");
  std::ofstream(at.path / "checkpoint_10" / "model.safetensors") << "y";
  const auto newest = newest_complete_checkpoint(at.path, "load_state", true);
  CHECK(newest.folder == at.path / "checkpoint_9");
  REQUIRE(newest.skipped_checkpoints.size() == 2);
  CHECK(newest.skipped_checkpoints[0] == "checkpoint_11: model.safetensors is missing");
  CHECK(newest.skipped_checkpoints[1].starts_with("checkpoint_10: model.safetensors has checksum "));
  CHECK(newest_complete_checkpoint(at.path, "load_state", false).folder == at.path / "checkpoint_10");
}

TEST_CASE("a folder that is not a checkpoint is not replaced, neither at the start nor at the end of a save") {
  const Folder at;
  const auto place = at.path / "home";
  fs::create_directory(place);
  const std::string refusal = "save_state: " + place.string() +
                              " exists and is not a checkpoint (it has no manifest.json), so it is not replaced; save "
                              "to another place, or remove it";
  {
    AtomicFolder begun(place, "save_state");  // an empty folder is replaced
    std::ofstream(place / "thesis.tex") << "x";
    CHECK_THROWS_WITH(begun.commit({.library = "test"}), refusal.c_str());
  }
  CHECK_THROWS_WITH(AtomicFolder(place, "save_state"), refusal.c_str());
  CHECK(fs::exists(place / "thesis.tex"));
  fs::remove(place / "thesis.tex");
  std::ofstream(place / "random_states_0.pkl") << "of Hugging Face Accelerate";
  CHECK_NOTHROW(AtomicFolder(place, "save_state"));
}

TEST_CASE("a folder with another program's manifest.json is not replaced; one with our torn manifest is") {
  const Folder at;
  const auto place = at.path / "last";
  const auto manifest = place / "manifest.json";
  save(place, "old");
  std::string ours;
  std::getline(std::ifstream(manifest), ours, '\0');
  const auto write = [&](const std::string& text) { std::ofstream(manifest, std::ios::trunc) << text; };
  const std::string refusal = "save_state: " + place.string() +
                              " exists and is not a checkpoint (another program wrote its manifest.json), so it is not "
                              "replaced; save to another place, or remove it";
  for (const std::string foreign :
       {"{\"name\": \"my web app\"}", "{\n \"version\": \"1.0\",\n \"library\": \"x\"\n}", "{\n \"version\": 1\n}",
        "{\n \"version\": ,\n \"library\": \"\"\n}", "", "{", "[]"}) {
    CAPTURE(foreign);
    write(foreign);
    CHECK_THROWS_WITH(AtomicFolder(place, "save_state"), refusal.c_str());
    CHECK(content_of(place) == "old");
  }
  fs::remove(manifest);
  fs::create_directory(manifest);
  CHECK_THROWS_WITH(AtomicFolder(place, "save_state"), refusal.c_str());
  fs::remove(manifest);
  for (const size_t bytes : {ours.size(), ours.size() / 2, size_t{40}}) {
    write(ours.substr(0, bytes));
    save(place, "new");
    CHECK(content_of(place) == "new");
  }
}

TEST_CASE("removing a checkpoint removes nothing beside it") {
  const Folder at;
  save(at.path / "checkpoint_0", "zero");
  save(at.path / "checkpoint_1", "one");
  remove_checkpoint(at.path / "checkpoint_0");
  CHECK(names_in(at.path) == std::set<std::string>{"checkpoint_1"});
  remove_checkpoint(at.path / "checkpoint_7");
  CHECK(names_in(at.path) == std::set<std::string>{"checkpoint_1"});
}

TEST_CASE("a checkpoint that contains another folder is not replaced") {
  const Folder at;
  const auto place = at.path / "run";
  save(place, "old");
  {
    AtomicFolder begun(place, "save_state");
    save(place / "checkpoints" / "checkpoint_0", "zero");
    CHECK_THROWS_WITH(
        begun.commit({.library = "test"}),
        ("save_state: " + place.string() +
         " exists and has a folder that does not belong to the checkpoint (checkpoints) and would be lost with "
         "it; save to another place, or move it")
            .c_str());
  }
  CHECK_THROWS_AS(save(place, "new"), accelerate::Error);
  CHECK(content_of(place) == "old");
  CHECK(content_of(place / "checkpoints" / "checkpoint_0") == "zero");
  CHECK(names_in(at.path) == std::set<std::string>{"run"});
}

TEST_CASE("additional files in a checkpoint move to its replacement") {
  const Folder at;
  const auto place = at.path / "last";
  for (const bool whole : {true, false}) {  // a torn manifest lists nothing, so file names decide
    CAPTURE(whole);
    save(place, "old");
    if (!whole) {
      std::ofstream(place / "window_0.bin") << "of the old one";
      fs::resize_file(place / "manifest.json", 40);
    }
    std::ofstream log(place / "log.txt");
    log << "begun" << std::flush;
    save(place, "new");
    log << ", ended" << std::flush;
    CHECK(content_of(place) == "new");
    CHECK(names_in(place) == std::set<std::string>{"log.txt", "manifest.json", "model.safetensors"});
    std::string text;
    std::getline(std::ifstream(place / "log.txt"), text, '\0');
    CHECK(text == "begun, ended");
    CHECK(names_in(at.path) == std::set<std::string>{"last"});
  }
}

TEST_CASE("removing a checkpoint keeps additional files") {
  const Folder at;
  const auto place = at.path / "checkpoint_0";
  save(place, "zero");
  std::ofstream(place / "scores.csv") << "1";
  fs::create_directory(place / "pictures");
  const auto kept = remove_checkpoint(place);
  CHECK(std::set<fs::path>(kept.begin(), kept.end()) == std::set<fs::path>{place / "pictures", place / "scores.csv"});
  CHECK(names_in(place) == std::set<std::string>{"pictures", "scores.csv"});
  CHECK(not_a_checkpoint_reason(place) == place.string() + " exists and is not a checkpoint (it has no manifest.json)");
}

TEST_CASE("remains of killed processes are removed, except those that a load restores") {
  const Folder at;
  const auto make = [&](const char* name) { save(at.path / name, "x"); };
  for (const char* name :
       {"checkpoint_3.saving-old-17", "checkpoint_4.saving-0123abcd", "best.saving-0123abcd", "checkpoint_5",
        "checkpoint_5.saving-0123abcd-old", "checkpoint_6.saving-0123abcd", "checkpoint_6.saving-0123abcd-old"}) {
    make(name);
  }
  std::ofstream(at.path / "checkpoint_7.saving-01234567") << "a file";
  // Names that this library does not use.
  const std::set<std::string> others{"checkpoint_7.saving-01234567", "checkpoint_7.saving-for-later",
                                     "checkpoint_7.saving-abc",      "checkpoint_7.saving-old",
                                     "checkpoint_7.saving-old-mine", "checkpoint_x.saving-01234567"};
  for (const auto& name : others) {
    if (!fs::exists(at.path / name)) fs::create_directories(at.path / name / "mine");
  }
  const auto with = [&](std::set<std::string> names) {
    names.insert(others.begin(), others.end());
    return names;
  };
  remove_leftovers(at.path);
  CHECK(names_in(at.path) == with({"best.saving-0123abcd", "checkpoint_5", "checkpoint_6.saving-0123abcd",
                                   "checkpoint_6.saving-0123abcd-old"}));
  recover_numbered(at.path);
  CHECK(content_of(at.path / "checkpoint_6") == "x");
  remove_leftovers(at.path);
  CHECK(names_in(at.path) == with({"best.saving-0123abcd", "checkpoint_5", "checkpoint_6"}));
  save(at.path / "checkpoint_7", "x");
  CHECK(names_in(at.path) == with({"best.saving-0123abcd", "checkpoint_5", "checkpoint_6", "checkpoint_7"}));
}

TEST_CASE("without file locks, folders in removal are removed, and folders in writing stay") {
  const Folder at;
  const testing::NoLocks no_locks;
  save(at.path / "checkpoint_0.saving-old-17", "x");
  const AtomicFolder making(at.path / "checkpoint_1", "save_state");
  remove_leftovers(at.path);
  CHECK(names_in(at.path) == std::set<std::string>{making.path().filename().string()});
}

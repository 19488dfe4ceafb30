// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/atomic_file.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "tests/launch/commands/files.hpp"
#include "tests/no_locks.hpp"
#include "tests/refusal.hpp"

using namespace accelerate::archive;
using testing::read_file;
using testing::refusal;
using testing::TemporaryFolder;
using testing::write_file;
namespace fs = std::filesystem;

namespace {

size_t files_in(const fs::path& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

}  // namespace

TEST_CASE("a new file appears on commit, not before, and no temporary file remains") {
  const TemporaryFolder at;
  {
    AtomicFile file(at.path / "f", "save");
    file.sink().write("half");
    CHECK_FALSE(fs::exists(at.path / "f"));
  }
  CHECK(files_in(at.path) == 0);
  AtomicFile file(at.path / "f", "save");
  file.sink().write("whole");
  file.commit(Existing::keep);
  CHECK(read_file(at.path / "f") == "whole");
  CHECK(files_in(at.path) == 1);
}

TEST_CASE("an existing file is replaced or kept, by option") {
  const TemporaryFolder at;
  write_file(at.path / "f", "old");
  const auto write = [&](Existing existing) {
    AtomicFile file(at.path / "f", "save");
    file.sink().write("new");
    file.commit(existing);
  };
  CHECK(refusal([&] { write(Existing::keep); }) ==
        "save: " + (at / "f.saving") + " cannot be renamed to " + (at / "f") + ": File exists");
  CHECK(read_file(at.path / "f") == "old");
  CHECK(files_in(at.path) == 1);
  write(Existing::replace);
  CHECK(read_file(at.path / "f") == "new");
}

TEST_CASE("two writers of one file exclude each other; remains of a killed writer are removed") {
  const TemporaryFolder at;
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork();
  if (child == 0) {
    AtomicFile file(at.path / "f", "save");
    file.sink().write("of the child");
    if (write(ready[1], "x", 1) != 1) _exit(1);
    pause();
  }
  char byte = 0;
  REQUIRE(read(ready[0], &byte, 1) == 1);
  CHECK(refusal([&] { AtomicFile(at.path / "f", "save"); }) ==
        "save: " + (at / "f") + " is being written by another process (" + (at / "f.saving") + " is incomplete)");
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
  CHECK(fs::exists(at.path / "f.saving"));
  AtomicFile file(at.path / "f", "save");
  file.sink().write("mine");
  file.commit(Existing::keep);
  CHECK(read_file(at.path / "f") == "mine");
  CHECK(files_in(at.path) == 1);
}

TEST_CASE("a file is written without file locks, and remains of a killed writer are removed") {
  for (const int error : {ENOSYS, ENOLCK, EOPNOTSUPP}) {
    CAPTURE(error);
    const TemporaryFolder at;
    const testing::NoLocks no_locks(error);
    write_file(at.path / "f.saving", "half");
    AtomicFile file(at.path / "f", "save");
    file.sink().write("whole");
    file.commit(Existing::keep);
    CHECK(read_file(at.path / "f") == "whole");
    CHECK(files_in(at.path) == 1);
  }
}

TEST_CASE("a missing folder is reported with the path") {
  CHECK(refusal([] { AtomicFile("/no/such/f", "save"); }) ==
        "save: /no/such/f.saving cannot be made: No such file or directory (0 bytes were written)");
}

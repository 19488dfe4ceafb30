// SPDX-License-Identifier: Apache-2.0
#include "launch/pmix/private_folder.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "launch/plan/error.hpp"
#include "tests/launch/no_descriptors.hpp"
#include "tests/no_locks.hpp"

using accelerate::launch::PrivateFolder;
namespace fs = std::filesystem;

namespace {

struct Parent {
  Parent() {
    char name[] = "/tmp/folder_test.XXXXXX";
    path = mkdtemp(name);
  }
  ~Parent() { fs::remove_all(path); }
  std::string path;
};

std::ptrdiff_t folders_in(const Parent& parent) {
  return std::distance(fs::directory_iterator(parent.path), fs::directory_iterator());
}

}  // namespace

TEST_CASE("a private folder is accessible to its owner only and is removed with its content") {
  const Parent parent;
  std::string path;
  {
    const PrivateFolder folder({.parent = parent.path});
    path = folder.path();
    struct stat status {};
    REQUIRE(stat(path.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0700);
    fs::create_directories(path + "/job/0");
    std::ofstream(path + "/job/0/segment") << "x";
  }
  CHECK_FALSE(fs::exists(path));
}

TEST_CASE("remains of a killed launcher are removed; folders of running launchers and other programs stay") {
  const Parent parent;
  const PrivateFolder living({.parent = parent.path});
  fs::create_directories(parent.path + "/accelerate_launch.killed/job");
  fs::create_directories(parent.path + "/somebody_else");
  const PrivateFolder next({.parent = parent.path});
  CHECK_FALSE(fs::exists(parent.path + "/accelerate_launch.killed"));
  CHECK(fs::exists(parent.path + "/somebody_else"));
  CHECK(fs::exists(living.path()));
  CHECK(fs::exists(next.path()));
}

TEST_CASE("a folder is created once without file locks, and removed at the end") {
  const Parent parent;
  const testing::NoLocks no_locks;
  {
    const PrivateFolder folder({.parent = parent.path});
    CHECK(folders_in(parent) == 1);
    const PrivateFolder second({.parent = parent.path});  // removes nothing: the first folder's lock cannot be tested
    CHECK(folders_in(parent) == 2);
  }
  CHECK(folders_in(parent) == 0);
}

TEST_CASE("a folder that cannot be opened is an error with its cause, and is removed") {
  const Parent parent;
  std::string message;
  try {
    const testing::NoDescriptors none;
    const PrivateFolder folder({.parent = parent.path});
  } catch (const accelerate::Error& error) {
    message = error.what();
  }
  CHECK(message == "accelerate_launch: no folder can be created in " + parent.path + ": Too many open files");
  CHECK(folders_in(parent) == 0);
}

TEST_CASE("a missing parent is named with the variable that defines it") {
  CHECK_THROWS_WITH_AS(
      PrivateFolder({.parent = "/no/such/parent", .named_by = "TMPDIR"}),
      "accelerate_launch: TMPDIR is '/no/such/parent', where no folder can be created: No such file or "
      "directory; set it to a folder that can be written",
      accelerate::launch::LaunchError);

  CHECK_THROWS_WITH_AS(PrivateFolder({.parent = "/no/such/parent"}),
                       "accelerate_launch: no folder can be created in /no/such/parent: No such file or directory",
                       accelerate::launch::LaunchError);
}

TEST_CASE("a folder with a given path is created there, and can be removed by its path") {
  const Parent parent;
  const accelerate::launch::FolderPlace place{.parent = parent.path};
  CHECK(place.name != accelerate::launch::FolderPlace{}.name);
  const PrivateFolder folder(place);
  CHECK(folder.path() == place.path());
  std::ofstream(place.path() + "/file") << "x";
  accelerate::launch::remove_folder(place.path());
  CHECK_FALSE(fs::exists(place.path()));
  accelerate::launch::remove_folder(place.path());
}

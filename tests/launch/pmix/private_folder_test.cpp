// SPDX-License-Identifier: Apache-2.0
#include "launch/pmix/private_folder.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "launch/plan/options.hpp"

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

}  // namespace

TEST_CASE("a private folder is ours alone and goes away with all it holds") {
  const Parent parent;
  std::string path;
  {
    const PrivateFolder folder(parent.path);
    path = folder.path();
    struct stat status {};
    REQUIRE(stat(path.c_str(), &status) == 0);
    CHECK((status.st_mode & 0777) == 0700);
    fs::create_directories(path + "/job/0");
    std::ofstream(path + "/job/0/segment") << "x";
  }
  CHECK_FALSE(fs::exists(path));
}

TEST_CASE("what a killed launcher left is swept, what a living one holds and what is not ours stays") {
  const Parent parent;
  const PrivateFolder living(parent.path);
  fs::create_directories(parent.path + "/accelerate_launch.killed/job");
  fs::create_directories(parent.path + "/somebody_else");
  const PrivateFolder next(parent.path);
  CHECK_FALSE(fs::exists(parent.path + "/accelerate_launch.killed"));
  CHECK(fs::exists(parent.path + "/somebody_else"));
  CHECK(fs::exists(living.path()));
  CHECK(fs::exists(next.path()));
}

TEST_CASE("a parent that is not there is named") {
  CHECK_THROWS_WITH_AS(PrivateFolder("/no/such/parent"),
                       "accelerate_launch: no folder can be made in /no/such/parent: No such file or directory",
                       accelerate::launch::LaunchError);
}

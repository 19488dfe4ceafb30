// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/remove_tree.hpp"

#include <doctest/doctest.h>

#include "tests/launch/commands/files.hpp"

using accelerate::base::remove_tree;
using testing::TemporaryFolder;
using testing::write_file;
namespace fs = std::filesystem;

TEST_CASE("a folder is removed with its content, but not the targets of its links") {
  const TemporaryFolder at;
  fs::create_directories(at.path / "tree" / "deep" / "er");
  fs::create_directories(at.path / "other");
  write_file(at.path / "other" / "kept", "x");
  write_file(at.path / "tree" / "deep" / "f", "x");
  fs::create_directory_symlink(at.path / "other", at.path / "tree" / "link");
  remove_tree(at.path / "tree");
  CHECK_FALSE(fs::exists(at.path / "tree"));
  CHECK(fs::exists(at.path / "other" / "kept"));
}

TEST_CASE("a file is removed, and a missing file is no error") {
  const TemporaryFolder at;
  write_file(at.path / "f", "x");
  remove_tree(at.path / "f");
  remove_tree(at.path / "f");
  CHECK(fs::is_empty(at.path));
}

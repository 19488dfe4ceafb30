// SPDX-License-Identifier: Apache-2.0
#include "launch/run/spawn.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

using accelerate::launch::find_program;
using accelerate::launch::LaunchError;

namespace {

struct Folder {
  Folder() {
    char name[] = "/tmp/spawn_test.XXXXXX";
    path = mkdtemp(name);
    std::ofstream(path + "/data.txt") << "x";
    std::ofstream(path + "/tool") << "#!/bin/sh\n";
    chmod((path + "/tool").c_str(), 0755);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string path;
};

std::pair<int, std::string> refusal(const std::string& name, const accelerate::env::Variables& variables = {}) {
  try {
    (void)find_program(name, variables);
  } catch (const LaunchError& error) {
    return {error.exit_code(), error.what()};
  }
  return {0, ""};
}

}  // namespace

TEST_CASE("a name with a slash is a path, other names are searched in PATH") {
  const Folder folder;
  const accelerate::env::Variables variables{{"PATH", "/nowhere:" + folder.path}};
  CHECK(find_program(folder.path + "/tool", {}) == folder.path + "/tool");
  CHECK(find_program("tool", variables) == folder.path + "/tool");
}

TEST_CASE("a program that cannot be run is refused with a shell's exit codes") {
  const Folder folder;
  using Pair = std::pair<int, std::string>;
  CHECK(refusal("./no_such_program") ==
        Pair{127, "accelerate_launch: ./no_such_program not found: No such file or directory"});
  CHECK(refusal("no_such_program", {{"PATH", "/bin"}}) ==
        Pair{127, "accelerate_launch: no_such_program not found in PATH"});
  CHECK(refusal("data.txt", {{"PATH", folder.path}}) == Pair{127, "accelerate_launch: data.txt not found in PATH"});
  CHECK(refusal("/tmp") == Pair{126, "accelerate_launch: /tmp is a folder, not a program"});
  const std::string data = folder.path + "/data.txt";
  CHECK(refusal(data) == Pair{126, "accelerate_launch: " + data + " is not executable: Permission denied; chmod +x " +
                                       data + " allows it"});
}

TEST_CASE("a path that the system cannot resolve is reported with its error, not as missing") {
  const Folder folder;
  using Pair = std::pair<int, std::string>;
  CHECK(refusal("/dev/null/x") == Pair{126, "accelerate_launch: /dev/null/x cannot be run: Not a directory"});
  const std::string circle = folder.path + "/circle";
  std::filesystem::create_symlink(circle, circle);
  CHECK(refusal(circle) ==
        Pair{126, "accelerate_launch: " + circle + " cannot be run: Too many levels of symbolic links"});
  const std::string longest = "/" + std::string(300, 'x');
  CHECK(refusal(longest) == Pair{126, "accelerate_launch: " + longest + " cannot be run: File name too long"});
}

TEST_CASE("a program in the current folder but not in PATH is reported with a hint") {
  const Folder folder;
  const auto before = std::filesystem::current_path();
  std::filesystem::current_path(folder.path);
  const auto message = refusal("tool", {{"PATH", "/bin"}});
  std::filesystem::current_path(before);
  CHECK(message ==
        std::pair<int, std::string>{127, "accelerate_launch: tool is not in PATH; the one in this folder is ./tool"});
}

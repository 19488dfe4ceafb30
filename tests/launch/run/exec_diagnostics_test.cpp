// SPDX-License-Identifier: Apache-2.0
#include "launch/run/exec_diagnostics.hpp"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>
#include <string>

#include "tests/launch/run.hpp"
#include "tests/launch/scratch.hpp"

using accelerate::launch::exec_error_reason;

namespace {

std::string script_of_text(const testing::Scratch& scratch, const std::string& text) {
  const std::string path = scratch.path + "/script";
  std::ofstream(path) << text;
  chmod(path.c_str(), 0755);
  return path;
}

/// The launcher's error text for a program that cannot run.
std::string refusal_to_run(const std::string& path) {
  const auto ran = testing::launch({"--num_processes", "1", path});
  CHECK(ran.code == 126);
  return ran.err;
}

}  // namespace

TEST_CASE("a script with a missing interpreter is refused with the interpreter's name") {
  const testing::Scratch scratch;
  const auto path = script_of_text(scratch, "#! /nonex/interp -x\n");
  CHECK(refusal_to_run(path) ==
        "accelerate_launch: " + path +
            " cannot be run: its interpreter /nonex/interp does not exist; install it, or correct the #! "
            "line\n");
}

TEST_CASE("a script with Windows line ends is reported as such") {
  const testing::Scratch scratch;
  const auto path = script_of_text(scratch, "#!/bin/sh\r\ntrue\r\n");
  CHECK(refusal_to_run(path) ==
        "accelerate_launch: " + path +
            " cannot be run: its #! line ends with a carriage return, as files from Windows do; sed -i "
            "'s/\\r$//' " +
            path + " takes them out\n");
}

TEST_CASE("other errors of the system about a file are reported verbatim or explained") {
  const testing::Scratch scratch;
  CHECK(exec_error_reason(script_of_text(scratch, "#!/bin/sh\n"), EACCES) == "Permission denied");
  CHECK(exec_error_reason(script_of_text(scratch, "#!/bin/sh\n"), ENOENT) == "No such file or directory");
  CHECK(exec_error_reason(script_of_text(scratch, "\x7f ELF"), ENOENT) ==
        "the loader that it requires does not exist; it is built for another system");
  CHECK(exec_error_reason(script_of_text(scratch, "text"), ENOEXEC) ==
        "it has no #! line, or is built for another machine");
}

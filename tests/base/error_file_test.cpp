// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/error_file.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <sstream>
#include <string>

#include "accelerate/base/error.hpp"
#include "tests/launch/scratch.hpp"

using accelerate::ErrorKind;
using accelerate::base::ErrorRecord;
using accelerate::base::parse_error_record;
namespace base = accelerate::base;

namespace {

[[noreturn]] void fail_at_work() { base::fail(ErrorKind::data, {}, "read", "line 3 is \"x\""); }

/// Content of the error file of a process that runs `work`.
std::string left_by(const std::function<void()>& work) {
  const testing::Scratch scratch;
  const std::string path = scratch.path + "/error.json";
  const pid_t pid = fork();
  if (pid == 0) {
    setenv("TORCHELASTIC_ERROR_FILE", path.c_str(), 1);
    std::set_terminate([] { _exit(7); });  // avoids a core file and doctest's output
    work();
    _exit(0);
  }
  waitpid(pid, nullptr, 0);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  const auto note = parse_error_record(text.str());
  return note ? note->text : "";
}

}  // namespace

TEST_CASE("an error record has torchrun's format and survives a round trip") {
  const ErrorRecord note{.text = "[rank 1 of 2, a] read: \"x\"\n", .time_ns = 1'700'000'000'123'456'789};
  CHECK(
      base::to_json(note) ==
      R"({"message":{"extraInfo":{"time_ns":1700000000123456789,"timestamp":"1700000000"},"message":"[rank 1 of 2, a] read: \"x\"\n"}})");
  CHECK(parse_error_record(base::to_json(note)) == note);
}

TEST_CASE("text that is not UTF-8 is stored readably") {
  CHECK(base::to_json({.text = "\xff"}).find("\xef\xbf\xbd") != std::string::npos);
}

TEST_CASE("both of torchrun's formats are read, and other content is ignored") {
  CHECK(parse_error_record(R"({"message": "lost", "timestamp": 7})") == ErrorRecord{"lost", 7'000'000'000});
  CHECK(parse_error_record(
            R"({"message": {"message": "lost", "extraInfo": {"py_callstack": "...", "timestamp": "7"}}})") ==
        ErrorRecord{"lost", 7'000'000'000});
  for (const auto* junk : {"", "{", "[]", "7", "{}", R"({"message": 7})", R"({"message": {}})", R"({"message": ""})"}) {
    CAPTURE(junk);
    CHECK_FALSE(parse_error_record(junk));
  }
}

TEST_CASE("an implausible timestamp is ignored") {
  CHECK(parse_error_record(R"({"message": "lost", "timestamp": 1764000000000})") == ErrorRecord{"lost", 0});
}

TEST_CASE("an uncaught error is written to the launcher's error file") {
  CHECK(left_by([]() noexcept { fail_at_work(); }) == "read: line 3 is \"x\"");
}

TEST_CASE("an error that main() turns into an exit code is written too") {
  CHECK(left_by([] {
          try {
            fail_at_work();
          } catch (const accelerate::Error&) {
            exit(1);
          }
        }) == "read: line 3 is \"x\"");
}

TEST_CASE("a handled error is not written if the process succeeds") {
  CHECK(left_by([] {
          try {
            fail_at_work();
          } catch (const accelerate::Error&) {
            exit(0);
          }
        }) == "");
}

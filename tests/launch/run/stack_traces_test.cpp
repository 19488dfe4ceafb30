// SPDX-License-Identifier: Apache-2.0
#include "launch/run/stack_traces.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>

#include <string>

#include "tests/launch/run.hpp"

using accelerate::launch::stacks_of;
using std::chrono::seconds;

TEST_CASE("a sleeping process has a sleep in its stack trace if a debugger is available") {
  testing::Child child({"sh", "-c", "echo up; exec sleep 300"});
  REQUIRE(child.wait_for("up"));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // waits for exec
  const auto text = stacks_of(child.pid(), seconds(60));
  CAPTURE(text);
  const bool cannot = text.starts_with("no stacks: ") || text.find("not permitted") != std::string::npos;
  CHECK((cannot || text.find("nanosleep") != std::string::npos));
  CHECK(testing::alive(child.pid()));
}

TEST_CASE("a missing debugger is reported, and a slow one is stopped") {
  const std::string path = getenv("PATH");
  setenv("PATH", "/nowhere", 1);
  CHECK(stacks_of(1, seconds(1)) == "no stacks: neither eu-stack nor gdb is installed\n");
  setenv("PATH", path.c_str(), 1);
  testing::Child child({"sleep", "300"});
  const auto text = stacks_of(child.pid(), std::chrono::milliseconds(0));
  const bool cut = text == "(cut here: the time for stacks is over)\n";
  CHECK((cut || text.starts_with("no stacks: ")));
}

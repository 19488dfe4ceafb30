// SPDX-License-Identifier: Apache-2.0
#include "launch/meet/message.hpp"

#include <doctest/doctest.h>

using namespace accelerate::launch;

namespace {

const Hello kHello{
    .version = "0.1.0", .job_id = "ab12", .host = "gpu-b", .machine = 1, .machines = 2, .processes = 4, .ranks = "2,2"};

std::string with(Hello hello) { return mismatch(kHello, hello).value_or(""); }

template <typename Change>
Hello changed(Change change) {
  Hello hello = kHello;
  change(hello);
  return hello;
}

}  // namespace

TEST_CASE("what is written is read") {
  const auto read = [](auto reader, std::string text) { return reader(take_message(text).value()); };
  CHECK(read(read_hello, message_of(kHello)) == kHello);
  const Welcome welcome{.job_id = "ab12", .port = 29501};
  CHECK(read(read_welcome, message_of(welcome)) == welcome);
  const End end{.exit_code = 137, .text = "machine 1 (gpu-b): worker 3, signal 9 (killed)"};
  CHECK(read(read_end, message_of(end)) == end);
  const End last{.exit_code = 130, .text = "x", .is_final = true};
  CHECK(read(read_end, message_of(last)) == last);
  const Again soon{.after = std::chrono::milliseconds(500)};
  CHECK(read(read_again, message_of(soon)) == soon);
  CHECK(read(read_again, message_of(Again{})) == Again{});
  const Hung hung{.cause = "no rank has moved for 30 s"};
  CHECK(read(read_hung, message_of(hung)) == hung);
}

TEST_CASE("a text of several lines stays one value") {
  std::string text = message_of(End{.exit_code = 1, .text = "a\nexit_code 2\n\nb"});
  CHECK(read_end(take_message(text).value()) == End{.exit_code = 1, .text = "a exit_code 2  b"});
  CHECK(text.empty());
}

TEST_CASE("messages are taken one by one, and none before its end") {
  std::string buffer = message_of(kHello).substr(0, 20);
  CHECK_FALSE(take_message(buffer));
  buffer = message_of(kHello) + std::string(done_message) + "rest";
  CHECK(read_hello(take_message(buffer).value()) == kHello);
  CHECK(take_message(buffer) == "done\n");
  CHECK_FALSE(take_message(buffer));
  CHECK(buffer == "rest");
}

TEST_CASE("what no launcher says is no message") {
  for (const char* text : {"", "\n", "GET / HTTP/1.1\r\nHost: x\r\n", "accelerate_launch hello",
                           "accelerate_launch hello\n", "accelerate_launch hello\nmachine 1\nmachines 0\nprocesses 4\n",
                           "accelerate_launch hello\nmachine -1\nmachines 2\nprocesses 4\n",
                           "accelerate_launch hello\nmachine x\nmachines 2\nprocesses 4\n"}) {
    CAPTURE(text);
    CHECK_FALSE(read_hello(text));
    CHECK_FALSE(read_welcome(text));
    CHECK_FALSE(read_end(text));
    CHECK_FALSE(read_again(text));
    CHECK_FALSE(read_hung(text));
  }
  CHECK_FALSE(read_welcome("accelerate_launch welcome\njob_id a\nport 0\n"));
  CHECK_FALSE(read_welcome("accelerate_launch welcome\njob_id a\nport 70000\n"));
  CHECK(read_end("accelerate_launch end\nexit_code 0\n") == End{.exit_code = 1});
}

TEST_CASE("two machines that do not fit are named with what each has") {
  CHECK_FALSE(mismatch(kHello, kHello));
  CHECK(with(changed([](Hello& hello) { hello.processes = 6; })) ==
        "machine 1 (gpu-b) has num_processes 6, machine 1 (gpu-b) has 4; they must be the same");
  CHECK(with(changed([](Hello& hello) { hello.version = "0.2.0"; })) ==
        "machine 1 (gpu-b) has accelerate_launch 0.2.0, machine 1 (gpu-b) has 0.1.0; they must be the same");
  CHECK(with(changed([](Hello& hello) { hello.machines = 3; })) ==
        "machine 1 (gpu-b) has num_machines 3, machine 1 (gpu-b) has 2; they must be the same");
  CHECK(with(changed([](Hello& hello) { hello.ranks = "3,1"; })) ==
        "machine 1 (gpu-b) has ranks per machine 3,1, machine 1 (gpu-b) has 2,2; they must be the same");
  CHECK(with(changed([](Hello& hello) { hello.restarts = 3; })) ==
        "machine 1 (gpu-b) has max_restarts 3, machine 1 (gpu-b) has 0; they must be the same");
  CHECK(with(changed([](Hello& hello) { hello.hang_ms = 500; })) ==
        "machine 1 (gpu-b) has hang_timeout 0.5 s, machine 1 (gpu-b) has 0 s; they must be the same");
  CHECK(with(changed([](Hello& hello) { hello.machine = 2; })) ==
        "machine 2 (gpu-b) tried to join a job of 2 machines");
}

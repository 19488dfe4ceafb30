// SPDX-License-Identifier: Apache-2.0
#include "launch/rendezvous/message.hpp"

#include <doctest/doctest.h>

using namespace accelerate::launch;

namespace {

const JoinRequest kJoinRequest{
    .version = "0.1.0", .job_id = "ab12", .host = "gpu-b", .machine = 1, .machines = 2, .processes = 4, .ranks = "2,2"};

std::string with(JoinRequest hello) { return mismatch(kJoinRequest, hello).value_or(""); }

template <typename Change>
JoinRequest changed(Change change) {
  JoinRequest hello = kJoinRequest;
  change(hello);
  return hello;
}

}  // namespace

TEST_CASE("a value survives a round trip") {
  const auto read = [](auto reader, std::string text) { return reader(take_message(text).value()); };
  CHECK(read(parse_join_request, message_of(kJoinRequest)) == kJoinRequest);
  const JoinReply welcome{.job_id = "ab12", .port = 29501};
  CHECK(read(parse_join_reply, message_of(welcome)) == welcome);
  const JobFailure end{.exit_code = 137, .text = "machine 1 (gpu-b): worker 3, signal 9 (killed)"};
  CHECK(read(parse_job_failure, message_of(end)) == end);
  const JobFailure last{.exit_code = 130, .text = "x", .is_final = true};
  CHECK(read(parse_job_failure, message_of(last)) == last);
  const RestartNotice soon{.after = std::chrono::milliseconds(500)};
  CHECK(read(parse_restart_notice, message_of(soon)) == soon);
  CHECK(read(parse_restart_notice, message_of(RestartNotice{})) == RestartNotice{});
  const HangNotice hung{.cause = "no rank has moved for 30 s"};
  CHECK(read(parse_hang_notice, message_of(hung)) == hung);
}

TEST_CASE("a text of several lines stays one value") {
  std::string text = message_of(JobFailure{.exit_code = 1, .text = "a\nexit_code 2\n\nb"});
  CHECK(parse_job_failure(take_message(text).value()) == JobFailure{.exit_code = 1, .text = "a exit_code 2  b"});
  CHECK(text.empty());
}

TEST_CASE("messages are read one by one, and only if they are complete") {
  std::string buffer = message_of(kJoinRequest).substr(0, 20);
  CHECK_FALSE(take_message(buffer));
  buffer = message_of(kJoinRequest) + std::string(kDoneMessage) + "rest";
  CHECK(parse_join_request(take_message(buffer).value()) == kJoinRequest);
  CHECK(take_message(buffer) == "done\n");
  CHECK_FALSE(take_message(buffer));
  CHECK(buffer == "rest");
}

TEST_CASE("a text that is not a launcher's message is refused") {
  for (const char* text : {"", "\n", "GET / HTTP/1.1\r\nHost: x\r\n", "accelerate_launch hello",
                           "accelerate_launch hello\n", "accelerate_launch hello\nmachine 1\nmachines 0\nprocesses 4\n",
                           "accelerate_launch hello\nmachine -1\nmachines 2\nprocesses 4\n",
                           "accelerate_launch hello\nmachine x\nmachines 2\nprocesses 4\n"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_join_request(text));
    CHECK_FALSE(parse_join_reply(text));
    CHECK_FALSE(parse_job_failure(text));
    CHECK_FALSE(parse_restart_notice(text));
    CHECK_FALSE(parse_hang_notice(text));
  }
  CHECK_FALSE(parse_join_reply("accelerate_launch welcome\njob_id a\nport 0\n"));
  CHECK_FALSE(parse_join_reply("accelerate_launch welcome\njob_id a\nport 70000\n"));
  CHECK(parse_job_failure("accelerate_launch end\nexit_code 0\n") == JobFailure{.exit_code = 1});
}

TEST_CASE("two incompatible machines are named with the differing values") {
  CHECK_FALSE(mismatch(kJoinRequest, kJoinRequest));
  CHECK(with(changed([](JoinRequest& hello) { hello.processes = 6; })) ==
        "machine 1 (gpu-b) has num_processes 6, machine 1 (gpu-b) has 4; they must be the same");
  CHECK(with(changed([](JoinRequest& hello) { hello.version = "0.2.0"; })) ==
        "machine 1 (gpu-b) has accelerate_launch 0.2.0, machine 1 (gpu-b) has 0.1.0; they must be the same");
  CHECK(with(changed([](JoinRequest& hello) { hello.machines = 3; })) ==
        "machine 1 (gpu-b) has num_machines 3, machine 1 (gpu-b) has 2; they must be the same");
  CHECK(with(changed([](JoinRequest& hello) { hello.ranks = "3,1"; })) ==
        "machine 1 (gpu-b) has ranks per machine 3,1, machine 1 (gpu-b) has 2,2; they must be the same");
  CHECK(with(changed([](JoinRequest& hello) { hello.restarts = 3; })) ==
        "machine 1 (gpu-b) has max_restarts 3, machine 1 (gpu-b) has 0; they must be the same");
  CHECK(with(changed([](JoinRequest& hello) { hello.hang_ms = 500; })) ==
        "machine 1 (gpu-b) has hang_timeout 0.5 s, machine 1 (gpu-b) has 0 s; they must be the same");
  CHECK(with(changed([](JoinRequest& hello) { hello.machine = 2; })) ==
        "machine 2 (gpu-b) tried to join a job of 2 machines");
}

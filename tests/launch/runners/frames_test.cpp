// SPDX-License-Identifier: Apache-2.0
#include "launch/runners/frames.hpp"

#include <doctest/doctest.h>

#include "launch/plan/error.hpp"

using namespace accelerate::launch;

namespace {

const std::string kRefusal =
    "accelerate_launch: the data on the connection is not from accelerate_launch; does a shell start-up file print "
    "text?";

std::string refusal(std::string bytes) {
  try {
    while (const auto frame = take_frame(bytes)) (void)job_of(*frame);
  } catch (const LaunchError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("frames with any content are read one by one, and only if they are complete") {
  Frame input{.kind = FrameKind::input, .bytes = std::string("a\0\n\xff", 4)};
  input.bytes.append(70'000, 'x');
  std::string buffer = encode_frame(input) + encode_frame({.kind = FrameKind::input_end});
  std::string part = buffer.substr(0, 1000);
  CHECK_FALSE(take_frame(part));
  CHECK(take_frame(buffer) == input);
  CHECK(take_frame(buffer) == Frame{.kind = FrameKind::input_end});
  CHECK_FALSE(take_frame(buffer));
}

TEST_CASE("a job with special words and values survives a round trip") {
  const RemoteJob job{.version = "0.1.0",
                      .folder = "/my data/$(x)",
                      .arguments = {"--cpu=1", "--", "./a b", "", "it's\n$HOME", "\"`'"},
                      .variables = {"A=b c", "B=", "C=x\ny=z"}};
  CHECK(job_of(frame_of(job)) == job);
}

TEST_CASE("bytes that are not a frame or not a job are refused") {
  CHECK(refusal("Welcome to host2!\n") == kRefusal);
  CHECK(refusal("J\xff\xff\xff\xff") == kRefusal);
  CHECK(refusal(encode_frame({.kind = FrameKind::job, .bytes = "no end"})) == kRefusal);
  CHECK(refusal(encode_frame({.kind = FrameKind::job, .bytes = ""})) == kRefusal);
  CHECK(refusal(encode_frame({.kind = FrameKind::job,
                              .bytes = std::string("1\0/\0"
                                                   "9\0a\0",
                                                   8)})) == kRefusal);
  CHECK(refusal(encode_frame({.kind = FrameKind::input,
                              .bytes = std::string("1\0/\0"
                                                   "0\0",
                                                   6)})) == kRefusal);
}

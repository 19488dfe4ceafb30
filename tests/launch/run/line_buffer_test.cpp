// SPDX-License-Identifier: Apache-2.0
#include "launch/run/line_buffer.hpp"

#include <doctest/doctest.h>

#include <string>

using accelerate::launch::LineBuffer;
using accelerate::launch::Tail;
using std::chrono::milliseconds;

TEST_CASE("the tail keeps the last lines, including the incomplete one") {
  Tail tail(3);
  CHECK(tail.text().empty());
  tail.add("one\ntwo\nth");
  CHECK(tail.text() == "one\ntwo\nth\n");
  tail.add("ree\nfour\nfive");
  CHECK(tail.text() == "three\nfour\nfive\n");
  tail.add("\n");
  CHECK(tail.text() == "three\nfour\nfive\n");
}

TEST_CASE("the tail contains a progress bar in its last state") {
  Tail tail;
  tail.add("\r 10 %\r 50 %");
  CHECK(tail.text() == " 50 %\n");
  tail.add("\r100 %\r\nDOS line\r\n");
  CHECK(tail.text() == "100 %\nDOS line\n");
}

TEST_CASE("the tail cuts endless lines") {
  Tail tail(2, 4);
  tail.add("abcdefgh\nx\ry");
  CHECK(tail.text() == "abcd\ny\n");
}

TEST_CASE("the tail does not depend on the sizes of the writes") {
  std::string text = "begun";
  for (int i = 0; i < 100; ++i) text += " " + std::to_string(i) + (i % 7 == 0 ? "\r" : i % 3 == 0 ? "\n\n" : "\n");
  for (const size_t lines : {1, 3, 20, 300}) {
    for (const char* end : {"", "open", "\n"}) {
      Tail min_uptime(lines);
      Tail slowly(lines);
      min_uptime.add("before\n");
      slowly.add("before\n");
      min_uptime.add(text + end);
      for (const char c : text + end) slowly.add(std::string(1, c));
      CHECK(min_uptime.text() == slowly.text());
    }
  }
}

TEST_CASE("complete lines are forwarded, an incomplete one waits") {
  LineBuffer lines;
  const LineBuffer::Clock::time_point start{};
  CHECK(lines.add("one\ntw", start) == "one\n");
  CHECK_FALSE(lines.empty());
  CHECK(lines.add("o\n", start) == "two\n");
  CHECK(lines.empty());
}

TEST_CASE("an incomplete line does not wait long") {
  LineBuffer lines;
  const LineBuffer::Clock::time_point start{};
  CHECK(lines.add("10 %", start) == "");
  CHECK(lines.flush(start + milliseconds(49)) == "");
  CHECK(lines.add(" and", start + milliseconds(49)) == "");
  CHECK(lines.flush(start + milliseconds(50)) == "10 % and");
  CHECK(lines.empty());
  CHECK(lines.flush(start + milliseconds(500)) == "");
}

TEST_CASE("a carriage return ends a chunk, so progress bars stay live") {
  LineBuffer lines;
  CHECK(lines.add("\r10 %\r20", {}) == "\r10 %\r");
  CHECK(lines.flush({}, true) == "20");
}

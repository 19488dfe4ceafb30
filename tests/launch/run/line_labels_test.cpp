// SPDX-License-Identifier: Apache-2.0
#include "launch/run/line_labels.hpp"

#include <doctest/doctest.h>

using accelerate::launch::Labels;

TEST_CASE("each line has its rank, an empty one too") {
  Labels labels(false);
  CHECK(labels.label(3, 6, "one\ntwo\n\nthree\n") == "[rank 3] one\n[rank 3] two\n[rank 3] \n[rank 3] three\n");
  CHECK(labels.label(3, 6, "") == "");
}

TEST_CASE("a line in several chunks has one label") {
  Labels labels(false);
  CHECK(labels.label(0, 0, "loss ") == "[rank 0] loss ");
  CHECK(labels.label(0, 0, "0.5\nnext\n") == "0.5\n[rank 0] next\n");
}

TEST_CASE("an incomplete line is closed before another stream's, and continues under its own label") {
  Labels labels(false);
  CHECK(labels.label(0, 0, "loss ") == "[rank 0] loss ");
  CHECK(labels.label(1, 2, "hello\n") == "\n[rank 1] hello\n");
  CHECK(labels.label(0, 0, "0.5\n") == "[rank 0] 0.5\n");
  CHECK(labels.label(0, 0, "a") == "[rank 0] a");
  CHECK(labels.label(0, 1, "its own stderr\n") == "\n[rank 0] its own stderr\n");
}

TEST_CASE("a progress bar has its label at each update") {
  Labels labels(false);
  CHECK(labels.label(0, 0, "\r 10 %") == "\r[rank 0]  10 %");
  CHECK(labels.label(0, 0, "\r 20 %\r 30 %") == "\r[rank 0]  20 %\r[rank 0]  30 %");
  CHECK(labels.label(1, 2, "x\n") == "\n[rank 1] x\n");
  CHECK(labels.label(0, 0, "\r100 %\n") == "\r[rank 0] 100 %\n");
  CHECK(labels.label(0, 0, "DOS\r\n") == "[rank 0] DOS\r\n");
}

TEST_CASE("labels have six colours on a terminal") {
  Labels labels(true);
  CHECK(labels.label(0, 0, "a\n") == "\x1b[31m[rank 0]\x1b[0m a\n");
  CHECK(labels.label(5, 10, "a\n") == "\x1b[36m[rank 5]\x1b[0m a\n");
  CHECK(labels.label(6, 12, "a\n") == "\x1b[31m[rank 6]\x1b[0m a\n");
}

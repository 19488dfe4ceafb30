// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tracking/meter.hpp"

#include <doctest/doctest.h>

using accelerate::tracking::interval_text;
using accelerate::tracking::meter_line;

TEST_CASE("lines equal tqdm 4.70's, character for character") {
  CHECK(meter_line({.description = "epoch 1",
                    .done = 45,
                    .total = 100,
                    .elapsed = 12.3,
                    .rate = 3.67,
                    .postfix = "loss=0.25",
                    .width = 70}) == "epoch 1:  45%|█████▍      | 45/100 [00:12<00:14,  3.67it/s, loss=0.25]");
  CHECK(meter_line({.description = "epoch 1",
                    .done = 45,
                    .total = 100,
                    .elapsed = 12.3,
                    .rate = 3.67,
                    .postfix = "loss=0.25",
                    .width = 70,
                    .utf8 = false}) == "epoch 1:  45%|#####4      | 45/100 [00:12<00:14,  3.67it/s, loss=0.25]");
  CHECK(meter_line({.done = 0, .total = 100, .width = 60}) ==
        "  0%|                               | 0/100 [00:00<?, ?it/s]");
  CHECK(meter_line({.done = 3, .total = 7, .elapsed = 30, .width = 60}) ==
        " 43%|██████████▋              | 3/7 [00:30<00:40, 10.00s/it]");
  CHECK(meter_line({.done = 7, .total = 7, .elapsed = 30, .width = 60}) ==
        "100%|█████████████████████████| 7/7 [00:30<00:00,  4.29s/it]");
  CHECK(meter_line({.description = "ünder", .done = 333, .total = 1000, .elapsed = 100000.5, .width = 63}) ==
        "ünder:  33%|██▉      | 333/1000 [27:46:40<55:38:21, 300.30s/it]");
}

TEST_CASE("without a total, or beyond it, there are numbers and no bar, as in tqdm") {
  CHECK(meter_line({.unit = "batch", .done = 7, .elapsed = 3725.9, .width = 60}) == "7batch [1:02:05, 532.27s/batch]");
  CHECK(meter_line({.done = 9, .total = 7, .elapsed = 30, .width = 60}) == "9it [00:30,  3.33s/it]");
  CHECK(meter_line({.done = 0, .total = 0, .elapsed = 1, .width = 60}) == "0it [00:01, ?it/s]");
}

TEST_CASE("a narrow terminal shows only the beginning of the line, in whole characters") {
  CHECK(meter_line({.done = 1, .total = 3, .elapsed = 1, .width = 20}) == " 33%|▎| 1/3 [00:01<0");
  CHECK(meter_line({.done = 1, .total = 1, .elapsed = 1, .width = 6}) == "100%|█");
  CHECK(meter_line({.done = 1, .total = 1, .elapsed = 1, .width = 0}).empty());
}

TEST_CASE("impossible intervals are a question mark") {
  CHECK(interval_text(0) == "00:00");
  CHECK(interval_text(3599.9) == "59:59");
  CHECK(interval_text(360000) == "100:00:00");
  CHECK(interval_text(-1) == "?");
  CHECK(interval_text(1e300) == "?");
}

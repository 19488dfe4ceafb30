// SPDX-License-Identifier: Apache-2.0
// The device is of the whole process and cannot be taken back: its tests are programs of their own.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "tests/stand_in/stand_in.hpp"

int main(int argc, char** argv) {
  if (!stand_in::on_gpu()) stand_in::install(/*devices=*/4, /*bytes_of_each=*/size_t{256} << 20);
  const int failed = doctest::Context(argc, argv).run();
  stand_in::finish();
  return failed;
}

// SPDX-License-Identifier: Apache-2.0
// The device is registered for the whole process and cannot be removed, so its tests are separate programs.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include "tests/stand_in/stand_in.hpp"

int main(int argc, char** argv) {
  if (!stand_in::on_gpu()) stand_in::install(/*devices=*/4, /*bytes_of_each=*/size_t{256} << 20);
  const int failed = doctest::Context(argc, argv).run();
  stand_in::finish();
  return failed;
}

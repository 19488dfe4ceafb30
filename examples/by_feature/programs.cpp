// SPDX-License-Identifier: Apache-2.0
// by_feature NAME ARGUMENTS: runs the program NAME.cpp of this folder.
#include "programs.hpp"

#include <fmt/format.h>

#include <exception>

int main(int argc, char** argv) {
  const auto& programs = by_feature::programs();
  const auto found = argc > 1 ? programs.find(argv[1]) : programs.end();
  if (found == programs.end()) {
    fmt::print(stderr, "by_feature NAME ARGUMENTS, where NAME is one of\n");
    for (const auto& [name, start] : programs) fmt::print(stderr, "  {}\n", name);
    return 2;
  }
  try {
    return found->second(argc - 1, argv + 1);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}

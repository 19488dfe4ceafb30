// SPDX-License-Identifier: Apache-2.0
// Registers the main() of each file of this folder by name, to build one program from all of them.
#pragma once

#include <functional>
#include <map>
#include <string>

namespace by_feature {

using Main = std::function<int(int argc, char** argv)>;

inline std::map<std::string, Main>& programs() {
  static std::map<std::string, Main> all;
  return all;
}

/// Registers a main(); each file has one static object.
struct Program {
  Program(const char* name, int (*start)()) {
    programs()[name] = [start](int, char**) { return start(); };
  }
  Program(const char* name, int (*start)(int, char**)) { programs()[name] = start; }
};

}  // namespace by_feature

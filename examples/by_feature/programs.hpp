// SPDX-License-Identifier: Apache-2.0
// The main() of each file of this folder, by name: one program is built of them all.
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

/// A static one of each file adds that file's.
struct Program {
  Program(const char* name, int (*start)()) {
    programs()[name] = [start](int, char**) { return start(); };
  }
  Program(const char* name, int (*start)(int, char**)) { programs()[name] = start; }
};

}  // namespace by_feature

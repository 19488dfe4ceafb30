// SPDX-License-Identifier: Apache-2.0
// Asks at a terminal until it gets an answer that makes sense.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "launch/commands/config_file.hpp"

namespace accelerate::launch {

/// Throws Error (usage) when the answers end before the questions do.
class Questions {
 public:
  Questions(std::istream& answers, std::ostream& screen) : answers_(answers), screen_(screen) {}

  /// One of choices, by its number or its name; empty: the default's.
  size_t choose(const std::string& question, const std::vector<std::string>& choices, size_t by_default);
  int64_t number(const std::string& question, int64_t lowest, int64_t highest, int64_t by_default);
  bool yes(const std::string& question, bool by_default);
  /// empty: the default, where there is one.
  std::string text(const std::string& question, const std::string& by_default = "");

 private:
  std::string line(const std::string& prompt);
  void say(const std::string& sentence);

  std::istream& answers_;
  std::ostream& screen_;
};

/// All that a config file says, asked one after another; what follows from the machine or an answer is not asked.
ClusterConfig ask_for_config(Questions& questions, const Machine& machine);

}  // namespace accelerate::launch

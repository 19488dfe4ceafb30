// SPDX-License-Identifier: Apache-2.0
// Asks questions at a terminal until the answer is valid.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "launch/commands/config_file.hpp"

namespace accelerate::launch {

/// \throws Error (usage) if the input ends before the last question.
class Questions {
 public:
  Questions(std::istream& answers, std::ostream& screen) : answers_(answers), screen_(screen) {}

  /// Returns the choice with the given number or name. An empty answer selects the default.
  size_t choose(const std::string& question, const std::vector<std::string>& choices, size_t by_default);
  int64_t number(const std::string& question, int64_t lowest, int64_t highest, int64_t by_default);
  bool yes(const std::string& question, bool by_default);
  /// An empty answer selects the default, if one exists.
  std::string text(const std::string& question, const std::string& by_default = "");

 private:
  std::string line(const std::string& prompt);
  void say(const std::string& sentence);

  std::istream& answers_;
  std::ostream& screen_;
};

/// Asks for every value of a config file, one after another. Questions that the machine or an earlier answer already
/// decides are skipped.
ClusterConfig ask_for_config(Questions& questions, const Machine& machine);

}  // namespace accelerate::launch

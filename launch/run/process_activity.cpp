// SPDX-License-Identifier: Apache-2.0
#include "launch/run/process_activity.hpp"

#include <fmt/format.h>

#include <fstream>
#include <string>

namespace accelerate::launch {

std::string_view process_activity(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const auto name_end = text.rfind(") ");  // the process name may contain any characters
  switch (name_end == std::string::npos ? '?' : text[name_end + 2]) {
    case 'T':
    case 't':
      return "is stopped";
    case 'R':
      return "computes";
    default:
      return "waits";
  }
}

}  // namespace accelerate::launch

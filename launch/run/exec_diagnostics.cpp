// SPDX-License-Identifier: Apache-2.0
#include "launch/run/exec_diagnostics.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string_view>

namespace accelerate::launch {
namespace {

/// Returns the text after #! without surrounding blanks, or "" for other files.
std::string interpreter_line(const std::string& program) {
  std::array<char, 256> bytes{};  // the kernel reads no more
  std::ifstream file(program, std::ios::binary);
  file.read(bytes.data(), bytes.size());
  const std::string_view text(bytes.data(), static_cast<size_t>(file.gcount()));
  if (!text.starts_with("#!")) return "";
  const auto line = text.substr(2, text.find('\n') - 2);
  const auto first = line.find_first_not_of(" \t");
  return first == line.npos ? "" : std::string(line.substr(first));
}

}  // namespace

std::string exec_error_reason(const std::string& program, int error) {
  if (error == ENOEXEC) return "it has no #! line, or is built for another machine";
  const std::string line = interpreter_line(program);
  const std::string interpreter = line.substr(0, line.find_first_of(" \t"));
  if (error != ENOENT || access(interpreter.c_str(), F_OK) == 0) return std::strerror(error);
  if (interpreter.ends_with('\r')) {
    return fmt::format(
        "its #! line ends with a carriage return, as files from Windows do; sed -i 's/\\r$//' {} takes "
        "them out",
        program);
  }
  if (!interpreter.empty()) {
    return fmt::format("its interpreter {} does not exist; install it, or correct the #! line", interpreter);
  }
  return "the loader that it requires does not exist; it is built for another system";  // an ELF file
}

}  // namespace accelerate::launch

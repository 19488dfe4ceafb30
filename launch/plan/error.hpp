// SPDX-License-Identifier: Apache-2.0
// Error type of the launcher: accelerate::Error with an exit code.
#pragma once

#include <string_view>
#include <utility>

#include "accelerate/base/error.hpp"

namespace accelerate::launch {

/// Thrown before a worker runs. Its text is "accelerate_launch: --num_processes is '0', must be ...".
class LaunchError : public Error {
 public:
  LaunchError(ErrorKind kind, int exit_code, std::string_view message)
      : Error(kind, {}, kLauncher, message), exit_code_(exit_code) {}

  /// Exit code as in shells: 1 failed, 2 usage, 126 the program cannot be executed, 127 it is not found.
  [[nodiscard]] int exit_code() const noexcept { return exit_code_; }
  /// The message without the program's name, for callers that add it themselves.
  [[nodiscard]] std::string_view message() const noexcept {
    return std::string_view(what()).substr(kLauncher.size() + std::string_view(": ").size());
  }

 private:
  static constexpr std::string_view kLauncher = "accelerate_launch";

  int exit_code_;
};

/// \throws LaunchError with this exit code.
template <typename... Args>
[[noreturn]] void fail_with(int exit_code, ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw LaunchError(kind, exit_code, fmt::format(format, std::forward<Args>(args)...));
}

/// The same with exit code 2 for usage errors, otherwise 1.
template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  fail_with(kind == ErrorKind::usage ? 2 : 1, kind, format, std::forward<Args>(args)...);
}

}  // namespace accelerate::launch

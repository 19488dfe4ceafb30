// SPDX-License-Identifier: Apache-2.0
// Command line of every program in this folder: `--help`, invalid options and errors.
#pragma once

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <type_traits>

namespace command_line {

/// Parses the options of `app`, then runs the program. An exception is printed without LibTorch's stack trace.
///
/// \param program  Called without arguments; returns an exit code or nothing.
/// \returns        The exit code: the program's own, 0 after `--help`, CLI11's after a wrong option, 1 after an
///                 exception.
template <typename Program>
int run(CLI::App& app, int argc, char** argv, const Program& program) {
  CLI11_PARSE(app, argc, argv);
  try {
    if constexpr (std::is_void_v<decltype(program())>) {
      program();
      return 0;
    } else {
      return program();
    }
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  return 1;
}

/// A validator for CLI11, because its own validator for numbers accepts "nan".
/// \returns "" if the number is above 0 and finite, otherwise the error.
inline std::string positive_and_finite(const std::string& text) {
  const double number = std::strtod(text.c_str(), nullptr);
  return std::isfinite(number) && number > 0 ? "" : text + " is not a finite number above 0";
}

}  // namespace command_line

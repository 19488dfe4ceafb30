// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace accelerate::base {

/// Returns the exception that run() throws, or null.
template <typename Run>
[[nodiscard]] std::exception_ptr capture_exception(const Run& run) {
  try {
    run();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

/// Returns the full text of an exception.
inline std::string exception_text(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

/// Returns the first line of an exception's text.
inline std::string exception_summary(const std::exception_ptr& failure) {
  const std::string text = exception_text(failure);
  return text.substr(0, text.find('\n'));
}

}  // namespace accelerate::base

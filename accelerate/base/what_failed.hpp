// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace accelerate::base {

/// One line about what was thrown: the first of its text.
inline std::string what_failed(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    return text.substr(0, text.find('\n'));
  } catch (...) {
    return "something that is no std::exception";
  }
}

}  // namespace accelerate::base

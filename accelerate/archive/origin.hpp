// SPDX-License-Identifier: Apache-2.0
// Origin of bytes, for errors about them.
#pragma once

#include <string>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/base/terminal_text.hpp"

namespace accelerate::archive {

struct Origin {
  std::string path{};              ///< of the file
  std::string operation = "load";  ///< the user's call

  /// \throws Error (kind): "load: model.safetensors: <message>".
  template <typename... Args>
  [[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(kind, {}, operation, path + ": " + fmt::format(format, std::forward<Args>(args)...));
  }

  /// \throws Error (data) as fail().
  template <typename... Args>
  [[noreturn]] void broken(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::data, format, std::forward<Args>(args)...);
  }
};

using base::quote_for_terminal;

}  // namespace accelerate::archive

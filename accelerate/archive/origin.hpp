// SPDX-License-Identifier: Apache-2.0
// Where bytes come from, for errors about them.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "accelerate/base/error.hpp"

namespace accelerate::archive {

struct Origin {
  std::string path{};              ///< of the file
  std::string operation = "load";  ///< what the user called

  /// Throws Error (data): "load: model.safetensors: <what is wrong>".
  template <typename... Args>
  [[noreturn]] void broken(fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(ErrorKind::data, {}, operation, path + ": " + fmt::format(format, std::forward<Args>(args)...));
  }
};

/// 'text' on one line: bytes that do not print as \x07, a long one cut.
std::string in_quotes(std::string_view text);

}  // namespace accelerate::archive

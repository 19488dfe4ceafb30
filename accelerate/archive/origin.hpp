// SPDX-License-Identifier: Apache-2.0
// Where bytes come from, for errors about them.
#pragma once

#include <string>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/base/printable.hpp"

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

using base::in_quotes;

}  // namespace accelerate::archive

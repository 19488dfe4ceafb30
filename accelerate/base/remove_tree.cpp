// SPDX-License-Identifier: Apache-2.0
#include "accelerate/base/remove_tree.hpp"

#include <system_error>

namespace accelerate::base {
namespace {

namespace fs = std::filesystem;

// Throws only if memory is exhausted, because system errors are returned as values.
void remove_contents(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(fs::symlink_status(path, error))) {
    for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
      remove_contents(entry->path());
    }
  }
  fs::remove(path, error);
}

}  // namespace

void remove_tree(const fs::path& path) noexcept {
  try {
    remove_contents(path);
  } catch (...) {  // NOLINT: best effort
  }
}

}  // namespace accelerate::base

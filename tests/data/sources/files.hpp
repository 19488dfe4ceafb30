// SPDX-License-Identifier: Apache-2.0
// What the tests of sources share: a folder of files, and the text of an error.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"
#include "tests/testing.hpp"

namespace test_files {

namespace fs = std::filesystem;

/// A folder of its own that goes away. Not with remove_all: libtorch.so 2.11 exports one that calls a null pointer.
struct Folder {
  fs::path path;
  Folder() {
    static int made = 0;
    path = fs::temp_directory_path() / ("accelerate-test-" + std::to_string(getpid()) + "-" + std::to_string(made++));
    fs::create_directories(path);
  }
  ~Folder() { clear(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] std::string file(const std::string& name) const { return (path / name).string(); }

 private:
  static void clear(const fs::path& folder) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(folder, ignored)) {
      if (entry.is_directory() && !entry.is_symlink()) {
        clear(entry.path());
      } else {
        fs::remove(entry.path(), ignored);
      }
    }
    fs::remove(folder, ignored);
  }
};

inline void write(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

inline std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// What a call that must throw an Error of that kind says.
inline std::string message(const std::function<void()>& call, accelerate::ErrorKind kind) {
  try {
    call();
  } catch (const accelerate::Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  return "nothing thrown";
}

/// Bytes of numbers, as they lie in memory.
template <typename Number>
std::string bytes(std::initializer_list<Number> numbers) {
  std::string all;
  for (const Number number : numbers) all.append(reinterpret_cast<const char*>(&number), sizeof number);
  return all;
}

/// The lines that are logged meanwhile, those too that were logged before.
inline std::vector<std::string> logged(const std::function<void()>& call) {
  std::vector<std::string> lines;
  accelerate::base::forget_lines();
  auto before = accelerate::base::set_log_handler([&](auto, std::string_view line) { lines.emplace_back(line); });
  call();
  accelerate::base::set_log_handler(before);
  return lines;
}

}  // namespace test_files

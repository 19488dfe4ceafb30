// SPDX-License-Identifier: Apache-2.0
// Common code of the source tests: a folder of files, and the text of an error.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/testing.hpp"

namespace test_files {

namespace fs = std::filesystem;

struct Folder : testing::TemporaryFolder {
  [[nodiscard]] std::string file(const std::string& name) const { return *this / name; }
};

inline void write(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

inline std::string read(const fs::path& path) { return testing::text_of(path); }

/// Text of the Error of that kind that the call must throw.
inline std::string message(const std::function<void()>& call, accelerate::ErrorKind kind) {
  try {
    call();
  } catch (const accelerate::Error& error) {
    CHECK(error.kind() == kind);
    return error.what();
  }
  return "nothing thrown";
}

/// Bytes of numbers in memory order.
template <typename Number>
std::string bytes(std::initializer_list<Number> numbers) {
  std::string all;
  for (const Number number : numbers) all.append(reinterpret_cast<const char*>(&number), sizeof number);
  return all;
}

/// Lines that are logged during the call, including those that were logged before.
inline std::vector<std::string> logged(const std::function<void()>& call) {
  std::vector<std::string> lines;
  accelerate::base::reset_log_once();
  auto before = accelerate::base::set_log_handler([&](auto, std::string_view line) { lines.emplace_back(line); });
  call();
  accelerate::base::set_log_handler(before);
  return lines;
}

}  // namespace test_files

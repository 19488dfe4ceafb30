// SPDX-License-Identifier: Apache-2.0
// Files with changed, removed, duplicated and mixed bytes. A reader must accept such a file or refuse it with an Error:
// no other exception, no crash, at most 10 seconds, no large allocation. The inputs are the same in every run; a
// failing one is named and kept. Include it in one file per program.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/base/error.hpp"

// With the sanitizer: limits single allocations, instead of RLIMIT_AS.
extern "C" const char* __asan_default_options();  // NOLINT
extern "C" const char* __asan_default_options() { return "max_allocation_size_mb=32:allocator_may_return_null=0"; }

namespace mutation {

namespace fs = std::filesystem;
using Random = std::mt19937_64;

struct Format {
  std::vector<std::string> whole;
  /// Reads the file in this folder; the number selects a way to read it.
  std::function<void(const fs::path& folder, uint64_t way)> read;
  std::string file = "x";
  /// Recomputes checksums, so that the data behind them is read.
  std::function<void(std::string&)> repair{};
};

inline std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline size_t below(Random& random, size_t limit) { return limit == 0 ? 0 : random() % limit; }

// Typical wrong values of sizes and counts.
inline std::string odd_number(Random& random) {
  constexpr std::array<uint32_t, 10> numbers{0, 1, 2, 0x7f, 0x80, 0xff, 0xfffff, 0x7fffffff, 0xffffffff, 0xfffffffe};
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &numbers[below(random, numbers.size())], 4);
  if (random() % 2 == 0) bytes = {bytes[3], bytes[2], bytes[1], bytes[0]};
  return bytes.substr(0, 1 + below(random, 4));
}

inline void mutate(std::string& file, const std::vector<std::string>& others, Random& random) {
  const size_t at = below(random, file.size());
  const size_t length = 1 + below(random, random() % 2 == 0 ? 4 : 40);
  switch (random() % 8) {
    case 0:
      if (!file.empty()) file[at] = static_cast<char>(file[at] ^ (1 << random() % 8));
      break;
    case 1:
      if (!file.empty()) file[at] = static_cast<char>(random());
      break;
    case 2: {
      const auto number = odd_number(random);
      file.replace(at, number.size(), number);
      break;
    }
    case 3:
      file.erase(at, length);
      break;
    case 4:
      file.insert(at, file.substr(at, length));
      break;
    case 5:
      file.resize(random() % 4 == 0 ? at : file.size());
      break;
    case 6: {
      const auto& other = others[below(random, others.size())];
      file.replace(at, length, other.substr(below(random, other.size()), length));
      break;
    }
    default: {
      constexpr std::string_view texts = "0123456789-+.eE,;\"'\n\r()[]{}<>|nafi: ";
      file.insert(at, 1 + below(random, 3), texts[below(random, texts.size())]);
    }
  }
}

inline std::string mutated(const Format& format, uint64_t number) {
  Random random(number);
  std::string file = format.whole[below(random, format.whole.size())];
  for (size_t left = below(random, 6); left > 0; --left) mutate(file, format.whole, random);
  if (format.repair && random() % 4 != 0) format.repair(file);
  return file;
}

inline std::array<char, 200> working_on{};

inline void too_slow(int) {
  (void)!write(STDERR_FILENO, working_on.data(), std::strlen(working_on.data()));
  _exit(1);
}

/// \returns true if no check failed.
inline bool run(const std::string& name, const Format& format, double seconds, const fs::path& folder) {
  std::array<int64_t, 2> counts{};  // refused, accepted
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  // A minimum number on a busy machine.
  for (uint64_t number = 0; number < 300 || std::chrono::steady_clock::now() < end; ++number) {
    fs::remove(folder / format.file);  // some file systems flush a file that is truncated and rewritten
    std::ofstream(folder / format.file, std::ios::binary) << mutated(format, number);
    std::snprintf(working_on.data(), working_on.size(), "mutated_files: %s, input %lu takes more than 10 s: %s\n",
                  name.c_str(), static_cast<unsigned long>(number), (folder / format.file).c_str());
    alarm(10);
    std::string problem;
    try {
      format.read(folder, number);
      ++counts[1];
    } catch (const accelerate::Error&) {
      ++counts[0];
    } catch (const std::exception& other) {
      problem = other.what();
    }
    alarm(0);
    if (problem.empty()) continue;
    std::cerr << "mutated_files: " << name << ", input " << number << " in " << folder / format.file
              << ": expected an Error, found " << problem << "\n";
    return false;
  }
  std::cout << name << ": " << counts[0] + counts[1] << " files, " << counts[0] << " refused\n";
  if (counts[0] > 0 && counts[1] > 0) return true;
  std::cerr << "mutated_files: " << name << ": expected some files to be refused and some to be taken\n";
  return false;
}

// A false size in a header must not be trusted: the current memory plus a margin is the limit.
inline void limit_memory() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t most = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + (32U << 20U);
  const rlimit limit{.rlim_cur = most, .rlim_max = most};
  setrlimit(RLIMIT_AS, &limit);
#endif
}

using Formats = std::map<std::string, std::function<Format()>>;

/// PROGRAM SECONDS [FORMAT ...]: runs SECONDS per format. Returns the exit code.
inline int run_formats(const Formats& formats, int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "mutated_files SECONDS [FORMAT ...]\n";
    return 2;
  }
  std::string path = (fs::temp_directory_path() / "accelerate-mutated-XXXXXX").string();
  if (mkdtemp(path.data()) == nullptr) return 2;
  std::vector<std::string> names(argv + 2, argv + argc);
  if (names.empty())
    for (const auto& [name, make] : formats) names.push_back(name);
  std::signal(SIGALRM, too_slow);
  limit_memory();
  for (const auto& name : names)
    if (!run(name, formats.at(name)(), std::stod(argv[1]), path)) return 1;
  for (const auto& entry : fs::directory_iterator(path)) fs::remove(entry.path());  // LibTorch 2.11 breaks remove_all
  fs::remove(path);
  return 0;
}

}  // namespace mutation

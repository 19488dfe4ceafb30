// SPDX-License-Identifier: Apache-2.0
#include "launch/run/log_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "launch/plan/error.hpp"

namespace accelerate::launch {
base::FileDescriptor open_log(const std::string& folder, int64_t rank, std::string_view start) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) fail(ErrorKind::io, "--log_dir {} cannot be made: {}", folder, failed.message());
  const auto path = fmt::format("{}/rank_{}.log", folder, rank);
  base::FileDescriptor file(open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666));
  if (!file) fail(ErrorKind::io, "{} of --log_dir cannot be opened: {}", path, std::strerror(errno));
  struct stat status {};
  if (fstat(file.get(), &status) == 0 && status.st_size > 0) {
    const auto line = fmt::format("---- accelerate_launch: {} ----\n", start);
    [[maybe_unused]] const auto written = write(file.get(), line.data(), line.size());
  }
  return file;
}

}  // namespace accelerate::launch

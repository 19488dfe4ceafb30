// SPDX-License-Identifier: Apache-2.0
// Private: opens and verifies a package. Nothing of it is executed.
#pragma once

#include <sys/stat.h>

#include <memory>
#include <string>
#include <string_view>

#include "accelerate/archive/mapped_file.hpp"
#include "accelerate/archive/origin.hpp"
#include "accelerate/nn/compiled_record.hpp"

namespace accelerate::nn::compiled {

struct PackageFile {
  archive::Origin origin{};
  Record record{};
  std::string_view weights{};  ///< initial values, in the mapped file
  std::shared_ptr<archive::MappedFile> map{};
  std::string resolved_path{};  ///< absolute and without links
  struct stat identity {};      ///< of the file that was verified
};

/// \throws Error (io) if another file has the path now, or the file has changed since it was verified.
void check_unchanged(const PackageFile& package);

/// Reads a package and compares every member with its checksum.
///
/// \param trusted  False: logs a warning for a file outside the program's folder, and refuses a file that every user
///                 can write.
/// \throws Error (io) if the file cannot be opened, (data) if it is damaged or not a package of export_compiled.py,
///         (usage) if every user can write it, (environment) if its code cannot run here; see check_host().
[[nodiscard]] PackageFile open_package(const std::string& path, bool trusted);

}  // namespace accelerate::nn::compiled

// SPDX-License-Identifier: Apache-2.0
// A file that is complete or does not exist.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "accelerate/archive/sink.hpp"
#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::archive {

/// Behavior if a file already exists at the final path.
enum class Existing {
  keep,     ///< keep it and refuse the new one
  replace,  ///< replace it by the new one
};

/// An unfinished file beside its final path. Until commit() the final path is unchanged, even after a crash. The next
/// writer removes the remains of a killed process.
///
/// \throws Error (io) if the system refuses; Error (usage) if another process is writing to the same path. On a file
///         system without locks this is not detected: an unfinished file counts as left by a killed process.
class AtomicFile {
 public:
  /// \param place      Path of the finished file; its parent must exist.
  /// \param operation  Name of the user's call for errors.
  AtomicFile(std::filesystem::path place, std::string_view operation);
  /// Removes the file unless commit() succeeded.
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  /// Destination of the file's bytes.
  [[nodiscard]] FileSink& sink() { return *sink_; }

  /// Flushes the file to disk and moves it to its path.
  void commit(Existing existing);

 private:
  std::filesystem::path place_, path_;
  std::string operation_;
  std::optional<FileSink> sink_;
  base::FileDescriptor lock_;
};

}  // namespace accelerate::archive

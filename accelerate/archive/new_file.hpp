// SPDX-License-Identifier: Apache-2.0
// A file that is there as a whole or not at all.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "accelerate/archive/sink.hpp"
#include "accelerate/base/file_descriptor.hpp"

namespace accelerate::archive {

/// What to do with a file that is in the place already.
enum class Existing {
  keep,     ///< it stays, and the new one is refused
  replace,  ///< the new one takes its place
};

/// An unfinished file beside its final path. Until commit() the final path is unchanged, even after a crash. The next
/// writer removes the remains of a killed process.
///
/// \throws Error (io) if the system refuses; Error (usage) if another process is writing to the same path. On a file
///         system without locks this is not detected: an unfinished file counts as left by a killed process.
class NewFile {
 public:
  /// \param place      Path of the finished file; its parent must exist.
  /// \param operation  Name of the user's call for errors.
  NewFile(std::filesystem::path place, std::string_view operation);
  /// Without commit(): removed.
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  /// Where its bytes go.
  [[nodiscard]] FileSink& sink() { return *sink_; }

  /// Brings it to the disk and puts it into its place.
  void commit(Existing existing);

 private:
  std::filesystem::path place_, path_;
  std::string operation_;
  std::optional<FileSink> sink_;
  base::FileDescriptor lock_;
};

}  // namespace accelerate::archive

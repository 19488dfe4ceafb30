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

/// A file in the making, beside the place where it will be. Until commit() the place is as it was, whatever ends the
/// program before; what a killed program left beside it is removed by the next that writes there.
///
/// Throws Error (io) where the system refuses; Error (usage) where another process is writing to the same place. A file
/// system without locks does not show that: there what is beside the place counts as left by a killed one.
class NewFile {
 public:
  /// place       of the whole file; its parent is there
  /// operation   what the user called, for errors
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

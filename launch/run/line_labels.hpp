// SPDX-License-Identifier: Apache-2.0
// Adds "[rank 3] " before each line if several workers print to one destination.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate::launch {

/// Stores only the state of the unfinished line. Use one object per destination.
class Labels {
 public:
  /// \param colours  Use terminal colours to distinguish ranks.
  explicit Labels(bool colours) : colours_(colours) {}

  /// Returns the labelled bytes to write. An unfinished line of another stream (a progress bar, a prompt) is ended
  /// first, so that one line never contains output of two ranks. A line that is redrawn with \r keeps its label.
  ///
  /// \param stream  Arbitrary number that identifies one stream of one worker.
  std::string label(int64_t rank, size_t stream, std::string_view bytes);

 private:
  [[nodiscard]] std::string prefix(int64_t rank) const;

  bool colours_;
  std::optional<size_t> open_;  // the stream with an unfinished line
  bool returned_ = false;       // true after a \r: the next character restarts the line
};

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// "[rank 3] " before each line of what several workers print to one place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate::launch {

/// Pure but for the line that is open: one object for each place that is written to.
class Labels {
 public:
  /// colours   of a terminal: ranks are told apart by them
  explicit Labels(bool colours) : colours_(colours) {}

  /// What to write for bytes of a stream. A line that another stream left open (a progress bar, a question) is closed
  /// first, so that no line holds the words of two; a bar that is drawn anew by \r keeps its label.
  ///
  /// stream   any number; one for each stream of each worker
  std::string label(int64_t rank, size_t stream, std::string_view bytes);

 private:
  [[nodiscard]] std::string prefix(int64_t rank) const;

  bool colours_;
  std::optional<size_t> open_;  // the stream whose line has no end yet
  bool returned_ = false;       // it was at a \r: the next character starts it anew
};

}  // namespace accelerate::launch

// SPDX-License-Identifier: Apache-2.0
// What a process that failed leaves for its launcher: torchrun's convention, a JSON file that TORCHELASTIC_ERROR_FILE
// names (torch/distributed/elastic/multiprocessing/errors).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate::base {

struct ErrorNote {
  std::string text{};
  int64_t time_ns = 0;  ///< since 1970; whole seconds where another program wrote it

  bool operator==(const ErrorNote&) const = default;
};

/// As torchrun reads it: {"message": {"message": text, "extraInfo": {"timestamp": "seconds"}}}, and the nanoseconds.
std::string to_json(const ErrorNote& note);

/// Nothing for what is no such file, or says nothing.
std::optional<ErrorNote> parse_error_note(std::string_view json);

/// Remembers the text of an Error. When this process then ends by an exception, or by a code that is not 0, and
/// TORCHELASTIC_ERROR_FILE names a file, the last text is written there: an Error that was handled is nobody's concern.
void note_error(std::string_view text) noexcept;

}  // namespace accelerate::base

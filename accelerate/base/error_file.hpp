// SPDX-License-Identifier: Apache-2.0
// Error file of a failed process for its launcher, in torchrun's format: a JSON file at the path in
// TORCHELASTIC_ERROR_FILE (torch/distributed/elastic/multiprocessing/errors).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace accelerate::base {

struct ErrorRecord {
  std::string text{};
  int64_t time_ns = 0;  ///< since 1970; in whole seconds if another program wrote the file

  bool operator==(const ErrorRecord&) const = default;
};

/// Returns torchrun's format, {"message": {"message": text, "extraInfo": {"timestamp": "seconds"}}}, with the
/// nanoseconds in addition.
std::string to_json(const ErrorRecord& note);

/// Returns nothing if the text is not an error file or contains no message.
std::optional<ErrorRecord> parse_error_record(std::string_view json);

/// Records the text of an Error. If this process then ends with an exception or a non-zero exit code, and
/// TORCHELASTIC_ERROR_FILE names a file, the last recorded text is written there. Handled errors are not reported.
void remember_error(std::string_view text) noexcept;

}  // namespace accelerate::base

// SPDX-License-Identifier: Apache-2.0
// Outcome of one restart attempt, sent from the guardian to the launcher.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launch/plan/error.hpp"

namespace accelerate::launch {

struct AttemptResult {
  int exit_code = 0;
  /// Cause of the first failure: "exit code 3". Empty if no worker failed or if the end was requested; a restart then
  /// does not help.
  std::string cause{};
  /// True if no worker failed and at least one exited with the resume code; `cause` contains that code.
  bool restart_requested = false;
  /// If no worker was started: the text of a LaunchError with this exit code, and its kind.
  std::string refusal{};
  ErrorKind kind = ErrorKind::environment;

  bool operator==(const AttemptResult&) const = default;
};

/// Converts a LaunchError or any other exception to an outcome.
AttemptResult attempt_result_of(const std::exception& error);
/// Rethrows the refusal of attempt_result_of() as a LaunchError. Returns if there is none.
void throw_if_refused(const AttemptResult& outcome);

std::string to_text(const AttemptResult& outcome);
/// Returns nothing if the text was not written by to_text() or is truncated.
std::optional<AttemptResult> parse_attempt_result(std::string_view text);

}  // namespace accelerate::launch

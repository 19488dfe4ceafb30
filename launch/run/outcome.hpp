// SPDX-License-Identifier: Apache-2.0
// Outcome of one restart attempt, sent from the guardian to the launcher.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launch/plan/error.hpp"

namespace accelerate::launch {

struct Outcome {
  int exit_code = 0;
  /// Cause of the first failure: "exit code 3". Empty if no worker failed or if the end was requested; a restart then
  /// does not help.
  std::string cause{};
  /// True if no worker failed and at least one exited with the resume code; `cause` contains that code.
  bool asks_for_another = false;
  /// If no worker was started: the text of a LaunchError with this exit code, and its kind.
  std::string refusal{};
  ErrorKind kind = ErrorKind::environment;

  bool operator==(const Outcome&) const = default;
};

/// Converts a LaunchError or any other exception to an outcome.
Outcome outcome_of(const std::exception& error);
/// Rethrows the refusal of outcome_of() as a LaunchError. Returns if there is none.
void throw_refusal(const Outcome& outcome);

std::string to_text(const Outcome& outcome);
/// Returns nothing if the text was not written by to_text() or is truncated.
std::optional<Outcome> parse_outcome(std::string_view text);

}  // namespace accelerate::launch

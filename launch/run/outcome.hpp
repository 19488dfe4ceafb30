// SPDX-License-Identifier: Apache-2.0
// How one start of all workers ended, as a value that goes from the guardian to the launcher.
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
  /// No worker failed and at least one exited with the resume code; `cause` contains that code.
  bool asks_for_another = false;
  /// Nothing ran: the text of a LaunchError with this exit code, and its kind.
  std::string refusal{};
  ErrorKind kind = ErrorKind::environment;

  bool operator==(const Outcome&) const = default;
};

/// A LaunchError, and any other exception, as an outcome.
Outcome outcome_of(const std::exception& error);
/// Rethrows the refusal that outcome_of() recorded, as a LaunchError. Returns if there is none.
void throw_refusal(const Outcome& outcome);

std::string to_text(const Outcome& outcome);
/// Returns nothing if the text was not written by to_text() or is truncated.
std::optional<Outcome> parse_outcome(std::string_view text);

}  // namespace accelerate::launch

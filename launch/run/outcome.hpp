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
  /// Of the worker that failed: "exit code 3". Empty where none failed, or they were told to end: then no restart
  /// helps.
  std::string cause{};
  /// Workers ended with the code that asks for another start, and none failed; cause tells the code.
  bool asks_for_another = false;
  /// Nothing ran: the text of a LaunchError with this exit code, and its kind.
  std::string refusal{};
  ErrorKind kind = ErrorKind::environment;

  bool operator==(const Outcome&) const = default;
};

/// A LaunchError, and any other exception, as an outcome.
Outcome outcome_of(const std::exception& error);
/// Throws what outcome_of() was given, as a LaunchError; returns where nothing was refused.
void throw_refusal(const Outcome& outcome);

std::string to_text(const Outcome& outcome);
/// Nothing for what to_text() did not write, or not to its end.
std::optional<Outcome> parse_outcome(std::string_view text);

}  // namespace accelerate::launch

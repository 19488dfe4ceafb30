// SPDX-License-Identifier: Apache-2.0
// Escapes external text for display in a terminal.
#pragma once

#include <string>
#include <string_view>

namespace accelerate::base {

/// Returns the text on one line, safe for a terminal: non-printable bytes are escaped as \x1b.
std::string escape_for_terminal(std::string_view text);

/// Returns the printable text in single quotes, truncated to 60 bytes.
std::string quote_for_terminal(std::string_view text);

}  // namespace accelerate::base

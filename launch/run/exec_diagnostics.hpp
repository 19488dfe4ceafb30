// SPDX-License-Identifier: Apache-2.0
// Explains why the system could not execute an existing program.
#pragma once

#include <string>

namespace accelerate::launch {

/// Returns one clause that explains the system's "No such file or directory" or "Exec format error" for this file.
///
/// \param program  Result of find_program().
/// \param error    errno of execve().
std::string exec_error_reason(const std::string& program, int error);

}  // namespace accelerate::launch

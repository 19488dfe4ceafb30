// SPDX-License-Identifier: Apache-2.0
// Why the system could not execute a program that is there.
#pragma once

#include <string>

namespace accelerate::launch {

/// One clause: what the system's "No such file or directory" and "Exec format error" mean for this file.
///
/// program   result of find_program
/// error     errno of execve
std::string why_not_run(const std::string& program, int error);

}  // namespace accelerate::launch

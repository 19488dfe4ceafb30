// SPDX-License-Identifier: Apache-2.0
// The launchers of several machines end together.
#pragma once

#include <functional>

#include "launch/meet/meeting.hpp"

namespace accelerate::launch {

/// Runs the ranks of this machine. When those of another fail, or its launcher is lost, this process gets a SIGTERM, on
/// which the work has to stop its ranks and return. Once the work returns 0 waits for the other machines.
///
/// resume_code  with which ranks ask for another start: it ends no other machine's. 0: none
/// failures     where a failure here is announced (run/announce.hpp) while the work still stops the other ranks
/// work         returns the exit code of this machine's ranks; the calling thread's signals are its own
/// returns      0 when all machines ended well, or resume_code; else the exit code of the first that failed, which is
///              named on stderr
int run_together(Gathered gathered, const Hello& own, int resume_code, int failures, const std::function<int()>& work);

}  // namespace accelerate::launch

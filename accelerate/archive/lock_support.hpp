// SPDX-License-Identifier: Apache-2.0
// File systems without locks, such as some network file systems.
#pragma once

#include <cerrno>

namespace accelerate::archive {

/// \param error  errno after flock() failed; a lock held by another process gives another value.
inline bool locks_unsupported(int error) { return error == ENOSYS || error == ENOLCK || error == EOPNOTSUPP; }

}  // namespace accelerate::archive

// SPDX-License-Identifier: Apache-2.0
// What tells a thing from every other of its kind: a job, a save.
#pragma once

#include <string>

namespace accelerate::base {

/// 128 random bits as 32 hexadecimal digits.
std::string random_id();

}  // namespace accelerate::base

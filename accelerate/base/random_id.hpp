// SPDX-License-Identifier: Apache-2.0
// Random identifiers for jobs and saves.
#pragma once

#include <string>

namespace accelerate::base {

/// 128 random bits as 32 hexadecimal digits.
std::string random_id();

}  // namespace accelerate::base

// SPDX-License-Identifier: Apache-2.0
// What tells a job from every other one.
#pragma once

#include <string>

namespace accelerate::launch {

/// 128 random bits as 32 hexadecimal digits.
std::string random_job_id();

}  // namespace accelerate::launch

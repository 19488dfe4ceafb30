// SPDX-License-Identifier: Apache-2.0
// Which device a rank computes on.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

#include "accelerate/base/error.hpp"
#include "accelerate/env/process_env.hpp"
#include "accelerate/env/settings.hpp"

namespace accelerate::device {

/// GPUs this process sees; 0 without a driver or in a build without CUDA. Never throws.
int64_t gpu_count() noexcept;

/// The device of settings.torch_device exactly, if given; else the CPU where it is asked for or there is no GPU; else
/// the GPU of the local rank. "cuda" without a number is the GPU of the local rank too.
///
/// Pure. Throws Error (device) for a GPU by name that is not there, and for more local ranks than GPUs, unless
/// settings.allow_shared_gpus, which deals the GPUs out in turn.
c10::Device choose(const env::ProcessEnv& process, const env::Settings& settings, int64_t gpus,
                   const Place& place = {});

}  // namespace accelerate::device

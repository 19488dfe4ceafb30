// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace accelerate::nn {

/// Text of the cross-entropy kernel for NVRTC: cross_entropy_arguments.hpp and cross_entropy.cu.
[[nodiscard]] std::string_view cross_entropy_text();

}  // namespace accelerate::nn

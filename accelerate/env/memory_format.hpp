// SPDX-License-Identifier: Apache-2.0
// Names of the memory formats of images.
#pragma once

#include <array>
#include <string_view>
#include <utility>

namespace accelerate::env {

/// Order of the elements in memory. Shapes and results are the same in every format.
enum class MemoryFormat {
  contiguous,        ///< as created: LibTorch's default is [N, C, H, W] with W innermost
  channels_last,     ///< tensors of 4 dimensions have C innermost (NHWC)
  channels_last_3d,  ///< tensors of 5 dimensions have C innermost (NDHWC)
};

inline constexpr std::array<std::pair<MemoryFormat, std::string_view>, 3> kMemoryFormats{
    {{MemoryFormat::contiguous, "contiguous"},
     {MemoryFormat::channels_last, "channels_last"},
     {MemoryFormat::channels_last_3d, "channels_last_3d"}}};

}  // namespace accelerate::env

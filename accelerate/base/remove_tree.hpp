// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace accelerate::base {

/// Removes a file, or a folder with all it holds, as far as the system lets; links are removed, not followed. Like
/// std::filesystem::remove_all, which LibTorch 2.11 exports too, broken, to every program that links it.
void remove_tree(const std::filesystem::path& path) noexcept;

}  // namespace accelerate::base

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>

namespace accelerate::base {

/// Removes a file, or a folder with its content, as far as the system permits. Links are removed, not followed.
/// Replaces std::filesystem::remove_all, because LibTorch 2.11 exports a broken copy of it to every program that links
/// LibTorch.
void remove_tree(const std::filesystem::path& path) noexcept;

}  // namespace accelerate::base

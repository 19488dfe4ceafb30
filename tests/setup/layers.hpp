// SPDX-License-Identifier: Apache-2.0
// The dependency table behind the diagram in the README (Architecture), and its check.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace layers {

using Names = std::set<std::string>;

/// The folders that each folder of accelerate/ may include besides itself. "facade" means files directly in
/// accelerate/.
const std::map<std::string, Names>& table();

/// Folder name for a path relative to the repository ("accelerate/comm/group.hpp" is "comm"), or "".
std::string room_of(const std::string& path);

/// One line for each #include under accelerate/ and launch/ that the table does not allow: "accelerate/data/loader.cpp:
/// data may not include comm (accelerate/comm/group.hpp)".
std::vector<std::string> violations(const std::filesystem::path& repository);

}  // namespace layers

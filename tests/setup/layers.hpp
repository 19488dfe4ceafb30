// SPDX-License-Identifier: Apache-2.0
// The table behind the picture in the README (Architecture), and the check that holds the tree to it.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace layers {

using Names = std::set<std::string>;

/// The rooms that each room may include besides itself. "facade" means files directly in accelerate/.
const std::map<std::string, Names>& table();

/// The room of a path relative to the repository ("accelerate/comm/group.hpp" is "comm"), "" for none.
std::string room_of(const std::string& path);

/// One line for each #include under accelerate/ and launch/ that the table does not allow:
/// "accelerate/data/loader.cpp: data may not include comm (accelerate/comm/group.hpp)".
std::vector<std::string> violations(const std::filesystem::path& repository);

}  // namespace layers

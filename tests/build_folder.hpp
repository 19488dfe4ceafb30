// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace testing {

/// The build folder: every test with LibTorch runs in it. Not a definition for the compiler, which would keep what is
/// compiled for one build folder from coming out of ccache for another.
inline std::string build_folder() { return std::filesystem::current_path().string(); }

}  // namespace testing

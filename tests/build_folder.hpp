// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

namespace testing {

/// The build folder, which is the working folder of every test with LibTorch. It is not a preprocessor definition,
/// because objects of one build folder could then not be reused by ccache in another.
inline std::string build_folder() { return std::filesystem::current_path().string(); }

}  // namespace testing

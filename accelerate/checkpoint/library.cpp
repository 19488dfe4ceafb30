// SPDX-License-Identifier: Apache-2.0
#include "accelerate/checkpoint/file_names.hpp"

namespace accelerate::checkpoint {

std::string_view library() { return "accelerate-cpp " ACCELERATE_VERSION; }

}  // namespace accelerate::checkpoint

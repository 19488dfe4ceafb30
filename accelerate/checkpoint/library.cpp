// SPDX-License-Identifier: Apache-2.0
#include "accelerate/checkpoint/names.hpp"

namespace accelerate::checkpoint {

std::string_view library() { return "accelerate-cpp " ACCELERATE_VERSION; }

}  // namespace accelerate::checkpoint

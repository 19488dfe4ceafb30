// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/handle.hpp"

#include "accelerate/base/error.hpp"

namespace accelerate::prepared {

void refuse_empty(std::string_view handle) {
  base::fail(ErrorKind::usage, {}, handle,
             "the handle is empty; assign the result of prepare() to it before it is used");
}

}  // namespace accelerate::prepared

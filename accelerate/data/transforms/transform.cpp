// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/transforms/transform.hpp"

#include "accelerate/base/error.hpp"

namespace accelerate::data::detail {

void FirstTensor::fail() {
  base::fail(ErrorKind::data, {}, "transform", "the batch holds no tensor, so there is nothing to transform");
}

}  // namespace accelerate::data::detail

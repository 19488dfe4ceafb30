// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/imprint.hpp"

#include <algorithm>
#include <cstring>

namespace accelerate::gradient {

Imprint imprint_of(const at::Tensor& parameter) {
  Imprint imprint{.version = parameter._version()};
  if (parameter.is_cpu() && parameter.is_non_overlapping_and_dense()) {
    std::memcpy(imprint.head.data(), parameter.const_data_ptr(), std::min(parameter.nbytes(), imprint.head.size()));
  }
  return imprint;
}

}  // namespace accelerate::gradient

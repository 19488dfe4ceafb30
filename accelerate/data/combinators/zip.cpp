// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/combinators/zip.hpp"

#include "accelerate/base/error.hpp"

namespace accelerate::data::detail {

int64_t one_size(const std::vector<int64_t>& sizes) {
  for (size_t i = 1; i < sizes.size(); ++i) {
    if (sizes[i] == sizes[0]) continue;
    base::fail(ErrorKind::usage, {}, "zip", "source {} has {} samples, source 0 {}; all must have as many (data::take)",
               i, sizes[i], sizes[0]);
  }
  return sizes[0];
}

}  // namespace accelerate::data::detail

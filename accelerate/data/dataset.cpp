// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/dataset.hpp"

#include "accelerate/base/error.hpp"

namespace accelerate::data::detail {

void check_count(int64_t samples, int64_t indices) {
  if (samples == indices) return;
  base::fail(ErrorKind::data, {}, "dataset", "get_batch returned {} samples for {} indices; must be one each", samples,
             indices);
}

void fail_without_size() {
  base::fail(ErrorKind::usage, {}, "dataset",
             "size() is empty, so no sample can be asked for by number; a data set of a known size is needed");
}

}  // namespace accelerate::data::detail

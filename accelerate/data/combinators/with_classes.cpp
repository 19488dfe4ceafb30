// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/combinators/with_classes.hpp"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "accelerate/base/error.hpp"

namespace accelerate::data::detail {

int64_t checked_classes(int64_t classes) {
  if (classes < 1) base::fail(ErrorKind::usage, {}, "with_classes", "classes is {}, must be at least 1", classes);
  return classes;
}

void check_batch_labels(const at::Tensor& labels, const at::Tensor& indices, int64_t classes) {
  const bool integers = labels.defined() && at::isIntegralType(labels.scalar_type(), /*includeBool=*/true);
  if (!integers || labels.dim() == 0 || labels.size(0) != indices.size(0)) {
    base::fail(ErrorKind::data, {}, "with_classes",
               "the labels are {}, must be integers, one or more for each of {} "
               "samples",
               labels.defined() ? labels.toString() + c10::str(labels.sizes()) : "no tensor", indices.size(0));
  }
  const at::Tensor flat = labels.to(at::kCPU, at::kLong).contiguous().view(-1);
  const auto* const first = flat.const_data_ptr<int64_t>();
  const auto* const last = first + flat.numel();
  const auto* const bad = std::find_if(first, last, [=](int64_t label) { return label < 0 || label >= classes; });
  if (bad == last) return;
  const int64_t row = (bad - first) / (flat.numel() / labels.size(0));
  base::fail(ErrorKind::data, {}, "with_classes", "sample {} has label {}: expected 0 to {}",
             indices.const_data_ptr<int64_t>()[row], *bad, classes - 1);
}

}  // namespace accelerate::data::detail

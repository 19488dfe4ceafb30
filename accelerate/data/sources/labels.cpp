// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/labels.hpp"

#include <algorithm>

#include "accelerate/base/error.hpp"
#include "accelerate/data/sources/files.hpp"

namespace accelerate::data {

void check_labels(const at::Tensor& labels, int64_t classes, const std::filesystem::path& path,
                  std::string_view operation) {
  if (classes < 1) base::fail(ErrorKind::usage, {}, operation, "classes is {}, must be at least 1", classes);
  if (!at::isIntegralType(labels.scalar_type(), /*includeBool=*/true))
    base::fail(ErrorKind::usage, {}, operation, "{} holds {}: expected integers, as classes is {}", path.string(),
               dtype_name(labels.scalar_type()), classes);
  const at::Tensor flat = labels.reshape(-1);
  constexpr int64_t piece = 1 << 20;  // labels of a mapped file may be large
  for (int64_t from = 0; from < flat.numel(); from += piece) {
    const at::Tensor some = flat.slice(0, from, std::min(from + piece, flat.numel())).to(at::kLong);
    const int64_t* const first = some.const_data_ptr<int64_t>();
    const int64_t* const last = first + some.numel();
    const int64_t* const bad = std::find_if(first, last, [=](int64_t label) { return label < 0 || label >= classes; });
    if (bad == last) continue;
    base::fail(ErrorKind::data, {}, operation, "{} says {} for sample {}: expected a label from 0 to {}", path.string(),
               *bad, (from + (bad - first)) / (flat.numel() / labels.size(0)), classes - 1);
  }
}

}  // namespace accelerate::data

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/combinators/concatenate.hpp"

#include <algorithm>
#include <limits>

#include "accelerate/base/error.hpp"

namespace accelerate::data::detail {

std::vector<SourcePart> parts_of(const at::Tensor& indices, const std::vector<int64_t>& ends) {
  std::vector<std::vector<int64_t>> places(ends.size());
  std::vector<std::vector<int64_t>> numbers(ends.size());
  const auto* const requested = indices.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < indices.size(0); ++i) {
    const auto source = static_cast<size_t>(std::upper_bound(ends.begin(), ends.end(), requested[i]) - ends.begin());
    places[source].push_back(i);
    numbers[source].push_back(requested[i] - (source == 0 ? 0 : ends[source - 1]));
  }
  std::vector<SourcePart> parts;
  for (size_t source = 0; source < ends.size(); ++source) {
    if (!places[source].empty()) parts.push_back({source, index_tensor(places[source]), index_tensor(numbers[source])});
  }
  return parts;
}

std::vector<int64_t> ends_of(const std::vector<int64_t>& sizes) {
  if (sizes.empty()) base::fail(ErrorKind::usage, {}, "concatenate", "there are 0 sources, must be at least 1");
  std::vector<int64_t> ends;
  int64_t end = 0;
  for (const int64_t size : sizes) {
    if (size > std::numeric_limits<int64_t>::max() - end)
      base::fail(ErrorKind::usage, {}, "concatenate", "{} and {} samples are more than an int64 counts", end, size);
    ends.push_back(end += size);
  }
  return ends;
}

void fail_unlike(const SourcePart& part, const SourcePart& first, const LeafPath& path) {
  base::fail(ErrorKind::data, {}, "concatenate",
             "sample {} of source {} and sample {} of source {} do not go together{}: shape, dtype or structure, or "
             "the values that are stored once for all of them, differ",
             part.indices[0].item<int64_t>(), part.source, first.indices[0].item<int64_t>(), first.source, path.at());
}

}  // namespace accelerate::data::detail

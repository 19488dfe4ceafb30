// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/dataset.hpp"

#include <map>

#include "accelerate/base/error.hpp"

namespace accelerate::data::detail {

void check_count(int64_t samples, int64_t indices) {
  if (samples == indices) return;
  base::fail(ErrorKind::data, {}, "dataset", "get_batch returned {} samples for {} indices; must be one each", samples,
             indices);
}

std::shared_ptr<std::recursive_mutex> reading_of(const void* dataset) {
  static std::mutex mutex;
  static std::map<const void*, std::weak_ptr<std::recursive_mutex>> all;
  const std::scoped_lock lock(mutex);
  std::erase_if(all, [](const auto& known) { return known.second.expired(); });
  auto held = all[dataset].lock();
  if (!held) all[dataset] = held = std::make_shared<std::recursive_mutex>();
  return held;
}

void fail_without_size() {
  base::fail(ErrorKind::usage, {}, "dataset",
             "size() is empty, so samples cannot be read by index; a data set with a known size is needed");
}

}  // namespace accelerate::data::detail

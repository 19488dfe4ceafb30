// SPDX-License-Identifier: Apache-2.0
#include "accelerate/sharding/range_record.hpp"

#include <c10/util/intrusive_ptr.h>
#include <fmt/format.h>

#include <mutex>
#include <unordered_map>

namespace accelerate::sharding {
namespace {

struct RecordedRange {
  // Weak, so that the record keeps no memory; the address of a parameter is not reused while the reference exists.
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> parameter;
  int64_t begin, end;
};

std::mutex record_mutex;

// Never destroyed, because LibTorch's globals may be destroyed first.
std::unordered_map<const void*, RecordedRange>& record() {
  static auto* ranges = new std::unordered_map<const void*, RecordedRange>();
  return *ranges;
}

}  // namespace

std::string changed_range(std::span<const state::ParameterShard> shards, int64_t rank) {
  const std::lock_guard lock(record_mutex);
  std::erase_if(record(), [](const auto& entry) { return entry.second.parameter.expired(); });
  for (const state::ParameterShard& shard : shards) {
    const auto found = record().find(shard.key);
    if (found == record().end()) continue;
    const RecordedRange& known = found->second;
    if (known.begin == shard.begin && known.end == shard.end) continue;
    return fmt::format(
        "rank {} owned elements {} to {} of parameter {} when it was prepared before, and would own {} to {} now, but "
        "its optimizer state has no other elements; prepare the same parameters on as many ranks, or build the model "
        "and its optimizer again and load a checkpoint",
        rank, known.begin, known.end, shard.name, shard.begin, shard.end);
  }
  return {};
}

void record_ranges(std::span<const state::ParameterShard> shards) {
  const std::lock_guard lock(record_mutex);
  for (const state::ParameterShard& shard : shards) {
    record().insert_or_assign(
        shard.key,
        RecordedRange{c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(shard.value.getIntrusivePtr()),
                      shard.begin, shard.end});
  }
}

}  // namespace accelerate::sharding

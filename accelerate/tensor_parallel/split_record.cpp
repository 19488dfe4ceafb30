// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tensor_parallel/split_record.hpp"

#include <c10/util/intrusive_ptr.h>

#include <mutex>
#include <unordered_map>

namespace accelerate::nn {
namespace {

struct SplitEntry {
  // Weak, so that the record keeps no memory; the address of a parameter is not reused while the reference exists.
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> parameter;
  RecordedPart part;
};

std::mutex split_mutex;

// Never destroyed, because LibTorch's globals may be destroyed first.
std::unordered_map<const void*, SplitEntry>& split_entries() {
  static auto* entries = new std::unordered_map<const void*, SplitEntry>();
  return *entries;
}

}  // namespace

void record_part(const at::Tensor& parameter, const RecordedPart& part) {
  const std::lock_guard lock(split_mutex);
  std::erase_if(split_entries(), [](const auto& entry) { return entry.second.parameter.expired(); });
  split_entries().insert_or_assign(
      parameter.unsafeGetTensorImpl(),
      SplitEntry{c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>(parameter.getIntrusivePtr()),
                 part});
}

std::optional<RecordedPart> recorded_part(const at::Tensor& parameter) {
  const std::lock_guard lock(split_mutex);
  const auto found = split_entries().find(parameter.unsafeGetTensorImpl());
  return found == split_entries().end() ? std::nullopt : std::optional(found->second.part);
}

std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>> parts_and_others(
    const std::vector<at::Tensor>& parameters) {
  std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>> found;
  for (const at::Tensor& parameter : parameters) {
    (recorded_part(parameter) ? found.first : found.second).push_back(parameter);
  }
  return found;
}

}  // namespace accelerate::nn

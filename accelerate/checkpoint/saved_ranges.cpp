// SPDX-License-Identifier: Apache-2.0
#include "accelerate/checkpoint/saved_ranges.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "accelerate/base/error.hpp"
#include "accelerate/checkpoint/safetensors_file.hpp"
#include "accelerate/checkpoint/torch_file.hpp"

namespace accelerate::checkpoint {

template <typename... Args>
void SavedRanges::refuse(fmt::format_string<Args...> format, Args&&... args) const {
  base::fail(ErrorKind::data, {}, operation_, "{}: {}", folder_.string(),
             fmt::format(format, std::forward<Args>(args)...));
}

SavedRanges::SavedRanges(std::filesystem::path folder, const archive::Manifest& manifest, std::string_view operation)
    : folder_(std::move(folder)), operation_(operation) {
  for (const Range& range : manifest.ranges) {
    auto& of_tensor = ranges_[range.tensor];
    if (of_tensor.empty()) order_.push_back(range.tensor);
    of_tensor.push_back(range);
  }
  for (auto& [name, ranges] : ranges_) {
    std::stable_sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (const Range& range : ranges) {
      if (range.sizes != ranges.front().sizes) refuse("{} has two shapes", archive::quote_for_terminal(name));
    }
  }
}

std::vector<std::string> SavedRanges::names(std::string_view prefix) const {
  std::vector<std::string> found;
  std::copy_if(order_.begin(), order_.end(), std::back_inserter(found),
               [&](const std::string& name) { return name.starts_with(prefix); });
  return found;
}

at::Tensor SavedRanges::tensor(const std::string& name) {
  const Range& first = ranges_of(name).front();
  if (ranges_of(name).size() == 1) return whole(name);
  const std::vector<int64_t> sizes(first.sizes.begin(), first.sizes.end());
  std::ignore = pieces(name, 0, elements_of(first));  // a load verifies everything before it changes anything
  const at::Tensor placeholder = at::empty(sizes, part(first).options().device(c10::kMeta));
  placeholders_.emplace(placeholder.unsafeGetTensorImpl(), std::pair(placeholder, name));
  return placeholder;
}

std::vector<state::SavedElements> SavedRanges::read(const at::Tensor& placeholder, int64_t begin, int64_t end) {
  const auto found = placeholders_.find(placeholder.unsafeGetTensorImpl());
  TORCH_INTERNAL_ASSERT(found != placeholders_.end(), "the placeholder belongs to another checkpoint");
  return pieces(found->second.second, begin, end);
}

at::Tensor SavedRanges::whole(const std::string& name) {
  const Range& first = ranges_of(name).front();
  const std::vector<int64_t> sizes(first.sizes.begin(), first.sizes.end());
  return elements(name, 0, elements_of(first)).reshape(sizes);
}

at::Tensor SavedRanges::elements(const std::string& name, int64_t begin, int64_t end) {
  if (begin == end) return part(ranges_of(name).front()).slice(0, 0, 0);
  std::vector<at::Tensor> values;  // all are checked against their files before memory is allocated
  for (auto& piece : pieces(name, begin, end)) values.push_back(std::move(piece.values));
  return values.size() == 1 ? values.front() : at::cat(values);
}

std::vector<state::SavedElements> SavedRanges::pieces(const std::string& name, int64_t begin, int64_t end) {
  std::vector<state::SavedElements> pieces;
  int64_t covered = begin;
  for (const Range& range : ranges_of(name)) {
    const auto first = static_cast<int64_t>(range.begin), last = static_cast<int64_t>(range.end);
    if (last <= covered) continue;
    if (first > covered || covered == end) break;
    const int64_t until = std::min(last, end);
    pieces.push_back({covered, part(range).slice(0, covered - first, until - first)});
    if (pieces.back().values.scalar_type() != pieces.front().values.scalar_type()) {
      refuse("{} has two dtypes", archive::quote_for_terminal(name));
    }
    covered = until;
  }
  if (covered != end) refuse("elements {} to {} of {} are in no file", covered, end, archive::quote_for_terminal(name));
  return pieces;
}

const std::vector<archive::ManifestRange>& SavedRanges::ranges_of(const std::string& name) const {
  const auto found = ranges_.find(name);
  if (found == ranges_.end()) refuse("the manifest has no tensor {}", archive::quote_for_terminal(name));
  return found->second;
}

at::Tensor SavedRanges::part(const Range& range) {
  const auto& tensors = file(range.file);
  const auto found = tensors.find(range.key);
  if (found == tensors.end()) {
    base::fail(ErrorKind::data, {}, operation_, "{}: there is no tensor {}, which the manifest names",
               (folder_ / range.file).string(), archive::quote_for_terminal(range.key));
  }
  const int64_t all = elements_of(range), there = found->second.numel();
  const auto begin = static_cast<int64_t>(range.begin), end = static_cast<int64_t>(range.end);
  if (end > all || there != end - begin) {
    refuse("elements {} to {} of {} are {} elements in {}, of a tensor of {}", begin, end,
           archive::quote_for_terminal(range.tensor), there, range.file, all);
  }
  return found->second.reshape({-1});
}

int64_t SavedRanges::elements_of(const Range& range) const {
  int64_t elements = 1;
  bool is_empty = false;
  for (const uint64_t size : range.sizes) {  // strides are defined even without elements
    is_empty = is_empty || size == 0;
    if (__builtin_mul_overflow(elements, std::max<uint64_t>(size, 1), &elements)) {
      refuse("{} has more elements than can be counted", archive::quote_for_terminal(range.tensor));
    }
  }
  return is_empty ? 0 : elements;
}

const std::unordered_map<std::string, at::Tensor>& SavedRanges::file(const std::string& name) {
  const auto [found, is_new] = files_.try_emplace(name);
  if (!is_new) return found->second;
  const auto path = folder_ / name;
  const auto tensors = path.extension() == ".safetensors" ? SafetensorsFile(path, operation_).tensors()
                                                          : TorchFile(path, operation_).tensors_by_path();
  for (const auto& [key, tensor] : tensors) found->second.emplace(key, tensor);
  return found->second;
}

}  // namespace accelerate::checkpoint

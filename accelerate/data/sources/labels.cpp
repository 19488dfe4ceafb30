// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sources/labels.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/data/derived_source.hpp"
#include "accelerate/data/sources/files.hpp"

namespace accelerate::data {

namespace {

std::string no_label(const std::filesystem::path& path, int64_t label, int64_t sample, int64_t classes) {
  return fmt::format("{} has label {} for sample {}: expected a label from 0 to {}", path.string(), label, sample,
                     classes - 1);
}

/// Calls fn(sample, label) for each label outside 0 to classes-1, in order.
template <typename Fn>
void each_bad_label(const at::Tensor& labels, int64_t classes, const Fn& fn) {
  const at::Tensor flat = labels.contiguous().view(-1);
  constexpr int64_t piece = 1 << 20;  // limits the copy: the labels of a mapped file may be large
  for (int64_t from = 0; from < flat.numel(); from += piece) {
    const at::Tensor some = flat.slice(0, from, std::min(from + piece, flat.numel())).to(at::kLong);
    const auto* const label = some.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < some.numel(); ++i)
      if (label[i] < 0 || label[i] >= classes) fn((from + i) / (flat.numel() / labels.size(0)), label[i]);
  }
}

}  // namespace

void check_can_skip(OnError on_error, bool declared, std::string_view operation, std::string_view option,
                    std::string_view what) {
  if (on_error != OnError::skip || declared) return;
  base::fail(ErrorKind::usage, {}, operation,
             "on_error is skip, but {} is not given, so no {} can be recognised as broken; give {}, or remove on_error",
             option, what, option);
}

void check_are_labels(const at::Tensor& labels, int64_t classes, const std::filesystem::path& path,
                      std::string_view operation) {
  if (classes < 1) base::fail(ErrorKind::usage, {}, operation, "classes is {}, must be at least 1", classes);
  if (!at::isIntegralType(labels.scalar_type(), /*includeBool=*/true))
    base::fail(ErrorKind::usage, {}, operation, "{} holds {}: expected integers, as classes is {}", path.string(),
               dtype_name(labels.scalar_type()), classes);
}

void check_labels(const at::Tensor& labels, int64_t classes, const std::filesystem::path& path,
                  std::string_view operation) {
  check_are_labels(labels, classes, path, operation);
  each_bad_label(labels, classes, [&](int64_t sample, int64_t label) {
    base::fail(ErrorKind::data, {}, operation, "{}", no_label(path, label, sample, classes));
  });
}

void SkippedSamples::add(int64_t more, std::string_view reason) {
  if (more > 0 && samples == 0) first = reason;
  samples += more;
}

void SkippedSamples::tell(std::string_view operation, int64_t all, std::string_view what) const {
  if (samples == 0) return;
  if (samples == all)
    base::fail(ErrorKind::data, {}, operation, "all {} {} are broken; the first: {}", all, what, first);
  base::log_once(base::LogLevel::warning, {}, "{}: {} of {} {} are left out; the first: {}", operation, samples, all,
                 what, first);
}

at::Tensor with_labels(const at::Tensor& labels, int64_t classes, const std::filesystem::path& path,
                       SkippedSamples& left_out) {
  std::vector<int64_t> places;
  int64_t next = 0;
  each_bad_label(labels, classes, [&](int64_t sample, int64_t label) {
    if (sample < next) return;  // another label of a sample that is already omitted
    while (next < sample) places.push_back(next++);
    ++next;
    left_out.add(1, no_label(path, label, sample, classes));
  });
  while (next < labels.size(0)) places.push_back(next++);
  return index_tensor(places);
}

}  // namespace accelerate::data

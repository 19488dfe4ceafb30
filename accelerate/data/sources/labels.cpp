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
  return fmt::format("{} says {} for sample {}: expected a label from 0 to {}", path.string(), label, sample,
                     classes - 1);
}

}  // namespace

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
    const int64_t sample = (from + (bad - first)) / (flat.numel() / labels.size(0));
    base::fail(ErrorKind::data, {}, operation, "{}", no_label(path, *bad, sample, classes));
  }
}

void LeftOut::add(int64_t more, std::string_view why) {
  if (more > 0 && samples == 0) first = why;
  samples += more;
}

void LeftOut::tell(std::string_view operation, int64_t all) const {
  if (samples == 0) return;
  if (samples == all) base::fail(ErrorKind::data, {}, operation, "all {} images are broken; the first: {}", all, first);
  base::log_once(base::LogLevel::warning, {}, "{}: {} of {} images are left out; the first: {}", operation, samples,
                 all, first);
}

at::Tensor with_labels(const at::Tensor& labels, int64_t classes, const std::filesystem::path& path,
                       LeftOut& left_out) {
  std::vector<int64_t> places;
  const auto* const label = labels.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < labels.numel(); ++i) {
    if (label[i] >= 0 && label[i] < classes) {
      places.push_back(i);
    } else {
      left_out.add(1, no_label(path, label[i], i, classes));
    }
  }
  return index_tensor(places);
}

}  // namespace accelerate::data

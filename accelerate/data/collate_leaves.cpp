// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/collate_leaves.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "accelerate/base/error.hpp"

namespace accelerate::data::detail {
namespace {

std::string shape_text(const at::Tensor& tensor) {
  return tensor.defined() ? fmt::format("[{}]", c10::Join(", ", tensor.sizes())) : "undefined";
}

[[noreturn]] void fail_shapes(const CollateWhere& where, size_t sample, const std::vector<const at::Tensor*>& tensors) {
  const auto* const rule = where.padding.value
                               ? "only the first dimension may differ"
                               : "all must have one shape; pad_collate pads a first dimension that differs";
  base::fail(ErrorKind::data, {}, "collate", "sample {} is {}{}, sample {} is {}; {}", where.number(sample),
             shape_text(*tensors[sample]), where.path.at(), where.number(0), shape_text(*tensors.front()), rule);
}

bool may_be_padded(const at::Tensor& tensor, const at::Tensor& first) {
  return tensor.defined() && first.defined() && tensor.dim() == first.dim() && tensor.dim() > 0 &&
         tensor.sizes().slice(1) == first.sizes().slice(1);
}

/// Returns true if the samples must be padded.
bool check_shapes(const std::vector<const at::Tensor*>& tensors, const CollateWhere& where) {
  const at::Tensor& first = *tensors.front();
  bool differ = false;
  for (size_t i = 1; i < tensors.size(); ++i) {
    const at::Tensor& tensor = *tensors[i];
    if (tensor.defined() == first.defined() && (!first.defined() || tensor.sizes() == first.sizes())) continue;
    if (!where.padding.value || !may_be_padded(tensor, first)) fail_shapes(where, i, tensors);
    differ = true;
  }
  return differ;
}

at::Tensor pad(const std::vector<const at::Tensor*>& tensors, const at::Scalar& value) {
  auto shape = tensors.front()->sizes().vec();
  auto dtype = tensors.front()->scalar_type();
  for (const auto* tensor : tensors) {
    shape[0] = std::max(shape[0], tensor->size(0));
    dtype = c10::promoteTypes(dtype, tensor->scalar_type());
  }
  shape.insert(shape.begin(), static_cast<int64_t>(tensors.size()));
  auto batch = at::full(shape, value, tensors.front()->options().dtype(dtype).requires_grad(false));
  for (size_t i = 0; i < tensors.size(); ++i) {
    batch.select(0, static_cast<int64_t>(i)).narrow(0, 0, tensors[i]->size(0)).copy_(*tensors[i]);
  }
  return batch;
}

}  // namespace

at::Tensor collate_tensors(const std::vector<const at::Tensor*>& tensors, const CollateWhere& where) {
  const bool differ = check_shapes(tensors, where);
  if (!tensors.front()->defined()) return {};
  if (auto* lengths = where.padding.lengths; lengths != nullptr && lengths->empty() && tensors.front()->dim() > 0) {
    for (const auto* tensor : tensors) lengths->push_back(tensor->size(0));
  }
  if (differ) return pad(tensors, *where.padding.value);
  std::vector<at::Tensor> list;
  list.reserve(tensors.size());
  for (const auto* tensor : tensors) list.push_back(*tensor);
  return at::stack(list);
}

at::Tensor mask_of(const std::vector<int64_t>& lengths) {
  if (lengths.empty())
    base::fail(ErrorKind::usage, {}, "pad_collate_with_mask",
               "no leaf of the samples has a first dimension, so there is nothing to mask; use pad_collate");
  const auto longest = *std::max_element(lengths.begin(), lengths.end());
  return at::arange(longest).unsqueeze(0).lt(at::tensor(lengths).unsqueeze(1));
}

void fail_key(const CollateWhere& where, const LeafPath& key, size_t sample) {
  base::fail(ErrorKind::data, {}, "collate", "sample {} has no {}, sample {} has; all must have the same keys",
             where.number(sample), key.text(), where.number(0));
}

void fail_length(const CollateWhere& where, std::string_view what, size_t sample, size_t length, size_t first) {
  base::fail(ErrorKind::data, {}, "collate", "sample {} has {} {}{}, sample {} has {}; all must have as many",
             where.number(sample), length, what, where.path.at(), where.number(0), first);
}

void throw_missing_key(const CollateWhere& where, size_t sample, bool has) {
  base::fail(ErrorKind::data, {}, "collate", "sample {} has {} value{}, sample {} has {}; all must, or none",
             where.number(sample), has ? "a" : "no", where.path.at(), where.number(0), has ? "none" : "one");
}

void check_some(size_t samples) {
  if (samples == 0) base::fail(ErrorKind::usage, {}, "collate", "there are 0 samples, must be at least 1");
}

at::Tensor empty_row(int64_t count, at::ScalarType dtype) {
  return at::empty({count}, at::TensorOptions().dtype(dtype));
}

}  // namespace accelerate::data::detail

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/average_gradients.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "accelerate/gradient/clip.hpp"
#include "accelerate/gradient/pieces.hpp"

namespace accelerate::gradient {
namespace {

// The last elements are flags, one per parameter: 1 if this rank has a gradient, otherwise 0. The mean of a flag is
// above 0 if any rank has a gradient.
void average_bucket(const comm::Group& group, const std::vector<at::Tensor>& parameters) {
  int64_t elements = 0;
  for (const at::Tensor& parameter : parameters) elements += parameter.numel();
  const auto count = static_cast<int64_t>(parameters.size());
  const at::Tensor flat = at::empty({elements + count}, parameters.front().options().requires_grad(false));
  const at::Tensor used = flat.narrow(0, elements, count);
  used.fill_(1);
  const auto part_of = [&](const at::Tensor& parameter, int64_t begin) {
    return flat.narrow(0, begin, parameter.numel()).view(parameter.sizes());
  };
  int64_t begin = 0;
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor& parameter = parameters[static_cast<size_t>(i)];
    if (parameter.grad().defined()) {
      part_of(parameter, begin).copy_(parameter.grad());
    } else {
      part_of(parameter, begin).zero_();
      used[i].zero_();
    }
    begin += parameter.numel();
  }
  group.all_reduce(flat, comm::ReduceOp::mean);
  at::Tensor used_by_any{};  // copied to the host only if a gradient is undefined on this rank
  begin = 0;
  for (int64_t i = 0; i < count; ++i) {
    const at::Tensor& parameter = parameters[static_cast<size_t>(i)];
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined() && !used_by_any.defined()) used_by_any = used.ne(0).cpu();
    if (gradient.defined() || used_by_any.const_data_ptr<bool>()[i]) {
      if (!gradient.defined()) gradient = at::empty_like(parameter.detach());
      gradient.copy_(part_of(parameter, begin));
    }
    begin += parameter.numel();
  }
}

}  // namespace

void average_gradients(const comm::Group& group, const std::vector<NamedTensor>& parameters,
                       const std::unordered_set<const void*>& alone, int64_t cap_bytes) {
  if (group.size() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> together, single;
  std::unordered_set<const void*> seen;
  for (const auto& [name, parameter] : parameters) {
    const void* key = parameter.unsafeGetTensorImpl();
    if (!parameter.requires_grad() || !seen.insert(key).second) continue;
    // Other ranks may have a dense gradient or none, and cannot know that this one is sparse.
    if (parameter.grad().defined() && parameter.grad().layout() != c10::kStrided) {
      parameter.mutable_grad() = parameter.grad().to_dense();
    }
    (alone.contains(key) ? single : together).push_back(parameter);
  }
  for (const at::Tensor& parameter : single) average_bucket(group, {parameter});
  for (const auto& kind : by_kind(together)) {
    for (const auto& bucket : pieces_of(kind, cap_bytes)) average_bucket(group, bucket);
  }
}

}  // namespace accelerate::gradient

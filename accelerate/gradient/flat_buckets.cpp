// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/flat_buckets.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Storage.h>
#include <fmt/format.h>

#include <utility>

#include "accelerate/base/version_counter.hpp"

namespace accelerate::gradient {
namespace {

// Aligns to 64 bytes for the kernels: the size of a cache line, and at least the width of a vector access on GPUs.
int64_t padded(int64_t elements, const at::Tensor& like, int64_t parts = 1) {
  const int64_t step = parts * static_cast<int64_t>(64 / like.element_size());
  return (elements + step - 1) / step * step;
}

// Created below autograd's view tracking, because zero_grad() detaches gradients in place, which fails for tracked
// views.
at::Tensor view_into(const at::Tensor& flat, int64_t offset, const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) {
    return flat.as_strided(parameter.sizes(), parameter.strides(), offset);
  }
  return flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
}

void release_storage(void* storage) { delete static_cast<c10::Storage*>(storage); }

// Shares the memory of another tensor and keeps it alive. No allocator knows this pointer, so record_stream() ignores
// it. That is safe, because a bucket outlives the operations on its gradients.
c10::DataPtr shared_memory(const at::Tensor& tensor) {
  void* const memory = tensor.numel() == 0 ? nullptr : tensor.mutable_data_ptr();
  return {memory, new c10::Storage(tensor.storage()), &release_storage, tensor.device()};
}

// Gives a tensor its own storage over the same memory.
at::Tensor with_own_storage(at::Tensor tensor, c10::DataPtr memory) {
  auto* const impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(c10::make_storage_impl(c10::StorageImpl::use_byte_size_t(),
                                                      static_cast<int64_t>(tensor.nbytes()), std::move(memory),
                                                      /*allocator=*/nullptr, /*resizable=*/false, tensor.device()));
  impl->set_storage_offset(0);
  return tensor;
}

}  // namespace

bool ParameterState::inside() const {
  const at::Tensor& now = gradient();
  if (now.is_same(view)) return true;
  return now.defined() && now.layout() == at::kStrided && now.const_data_ptr() == view.const_data_ptr() &&
         now.strides() == view.strides() && now.is_conj() == view.is_conj() && now.is_neg() == view.is_neg();
}

bool ParameterState::in_place() const {
  if (!used()) return true;
  if (view.defined()) return inside();
  return kept && kept->_unsafe_get_target() == gradient().unsafeGetTensorImpl();
}

void ParameterState::mark_synchronized() {
  local = false;
  writes.disarm();
  kept.reset();
  if (used() && !view.defined()) kept.emplace(gradient().getIntrusivePtr());
}

void ParameterState::attach(const device::Factor* factor) {
  at::Tensor& now = gradient();
  if (!inside()) {
    release_view();
    at::Tensor dense = now.is_sparse() ? now.to_dense() : now;
    // the copy may be the view itself
    if (dense.is_conj() || dense.is_neg()) dense = dense.resolve_conj().resolve_neg();
    factor != nullptr ? factor->multiply(dense, view) : void(view.copy_(dense, true));
  }
  now = view;
  view_is_zero = false;
}

void ParameterState::zero_view() {
  release_view();
  if (!view_is_zero) view.zero_();
  view_is_zero = true;
}

bool ParameterState::held() const {
  if (!view.defined()) return false;
  const bool is_view = gradient().is_same(view);
  if (view.use_count() > (is_view ? 2 : 1)) return true;
  const bool other_handle = !is_view && used() && inside();
  return view.storage().use_count() > (other_handle ? 2 : 1);
}

void ParameterState::release_view() {
  if (!view.defined() || (used() && inside()) || !held()) return;
  const at::AutoDispatchBelowADInplaceOrView untracked;
  const at::Tensor copy = view.clone();
  at::Tensor fresh = view.as_strided(view.sizes(), view.strides());
  c10::DataPtr own_memory = copy.storage().unsafeGetStorageImpl()->set_data_ptr({nullptr, view.device()});
  // Aliases share the storage, so all of them move. The saved tensors of a graph keep their values and versions.
  c10::DataPtr in_bucket = view.storage().unsafeGetStorageImpl()->set_data_ptr(std::move(own_memory));
  view = with_own_storage(std::move(fresh), std::move(in_bucket));
}

void ParameterState::count_write() const {
  if (used() && inside() && held()) base::count_write(gradient());
}

void ParameterState::detach_from_bucket() {
  const bool settled = !local && in_place();
  view.reset();
  bucket = -1;
  sparse_dim = 0;
  view_is_zero = false;
  writes.disarm();
  if (used()) gradient() = gradient().to(parameter.device(), parameter.scalar_type());
  if (settled) mark_synchronized();
}

std::string bucket_key(const at::Tensor& tensor) {
  return fmt::format("{} {}", c10::toString(tensor.scalar_type()), tensor.device().str());
}

std::vector<FlatBucket> lay_out(std::vector<ParameterState>& states, const BucketPlan& plan, int64_t n_counts,
                                int64_t ranks) {
  if (states.empty()) return {};  // all parameters are frozen
  const at::AutoDispatchBelowADInplaceOrView untracked;
  std::vector<FlatBucket> buckets(std::max<size_t>(plan.buckets.size(), 1));
  for (size_t b = 0; b < buckets.size(); ++b) {
    FlatBucket& bucket = buckets[b];
    if (b < plan.buckets.size()) bucket.members = plan.buckets[b].items;
    const ParameterState& any = states[static_cast<size_t>(bucket.members.empty() ? 0 : bucket.members.front())];
    bucket.index = static_cast<int64_t>(b);
    bucket.is_last = b + 1 == buckets.size();
    int64_t total = 0;
    for (const int64_t i : bucket.members)
      total += padded(states[static_cast<size_t>(i)].parameter.numel(), any.parameter);
    total = padded(total, any.parameter, ranks);
    const int64_t counts = bucket.is_last ? n_counts : 0;
    bucket.flat = at::zeros({total + counts}, any.parameter.options().requires_grad(false));
    bucket.gradients = bucket.flat.narrow(0, 0, total);
    if (counts > 0) bucket.counts = bucket.flat.narrow(0, total, counts);
    int64_t offset = 0;
    for (const int64_t i : bucket.members) {
      ParameterState& state = states[static_cast<size_t>(i)];
      bucket.views.push_back(view_into(bucket.flat, offset, state.parameter));
      const at::Tensor& view = bucket.views.back();
      state.view = with_own_storage(view_into(bucket.flat, offset, state.parameter), shared_memory(view));
      state.bucket = bucket.index;
      state.view_is_zero = true;
      const int64_t end = offset + state.parameter.numel();
      offset += padded(state.parameter.numel(), any.parameter);
      if (offset > end) bucket.gaps.push_back(bucket.flat.narrow(0, end, offset - end));
    }
    if (total > offset) bucket.gaps.push_back(bucket.flat.narrow(0, offset, total - offset));
  }
  return buckets;
}

}  // namespace accelerate::gradient

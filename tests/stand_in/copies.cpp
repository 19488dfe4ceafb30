// SPDX-License-Identifier: Apache-2.0
// Copies between host and device, and host reads.
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <torch/library.h>

#include "tests/stand_in/tensors.hpp"
#include "tests/stand_in/world.hpp"

namespace stand_in {
namespace {

void make_wait(const c10::Stream& waiting, const c10::Stream& other) {
  c10::Event event(kType);
  event.record(other);
  event.block(waiting);
}

/// True if the host waits for a copy, as documented for CUDA.
bool blocks(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const bool upload = !is_ours(from);
  const bool download = !is_ours(to);
  if (download) return !(non_blocking && to.is_pinned());
  return upload && !non_blocking;
}

/// An upload from pageable memory has read that memory when it returns. An upload from pinned memory reads it later,
/// and does not keep it alive.
at::Tensor source_of(const at::Tensor& from, bool waits) {
  if (is_ours(from)) return as_cpu(from);
  if (waits) return from;
  if (!from.is_pinned() || from.is_conj() || from.is_neg()) return from.clone();
  return at::from_blob(const_cast<void*>(from.const_data_ptr()), from.sizes(), from.strides(), from.options());
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const auto device = (is_ours(from) ? from : to).device();
  const auto stream = current_stream(device.index());
  const bool between_devices = is_ours(from) && is_ours(to) && from.device() != to.device();
  const bool waits = blocks(from, to, non_blocking);
  if (!is_ours(from) && !from.is_pinned()) ++world().pageable_uploads.at(static_cast<size_t>(device.index()));
  std::vector<Touch> touches;
  if (is_ours(from)) touch(touches, from, false);
  if (is_ours(to)) touch(touches, to, true);
  if (between_devices) make_wait(stream, current_stream(to.device().index()));
  launch(stream, "copy_", touches,
         [source = source_of(from, waits), target = is_ours(to) ? as_cpu(to) : to]() mutable { target.copy_(source); });
  if (between_devices) make_wait(current_stream(to.device().index()), stream);
  if (waits) host_wait(stream);
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  const auto stream = current_stream(self.device().index());
  std::vector<Touch> touches;
  touch(touches, self, false);
  launch(stream, "item", touches, [] {});
  host_wait(stream);
  return as_cpu(self).item();
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar_dense);
}

}  // namespace stand_in

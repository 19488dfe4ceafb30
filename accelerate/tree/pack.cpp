// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tree/pack.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "accelerate/base/error.hpp"
#include "accelerate/device/absent_memory.hpp"

namespace accelerate::tree::detail {
namespace {

constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

void Packer::tensor(const at::Tensor& tensor) {
  count(tensor.defined() ? 1 : 0);
  if (!tensor.defined()) return;
  if (tensor.layout() != at::kStrided || tensor.is_quantized()) {
    base::fail(ErrorKind::usage, {}, "pack", "a tensor is {}, must be dense and not quantized to be sent",
               tensor.toString());
  }
  tensors_.push_back(tensor.detach().to(at::kCPU).contiguous().resolve_conj().resolve_neg());
  const auto dtype = static_cast<int64_t>(tensor.scalar_type());
  bytes(&dtype, sizeof dtype);
  count(static_cast<size_t>(tensor.dim()));
  for (const int64_t size : tensor.sizes()) bytes(&size, sizeof size);
}

at::Tensor Packer::finish() const {
  const auto head = static_cast<int64_t>(head_.size());
  int64_t total = aligned(static_cast<int64_t>(sizeof head) + head);
  for (const auto& tensor : tensors_) total += aligned(static_cast<int64_t>(tensor.nbytes()));
  auto packed = at::empty({total}, at::TensorOptions().dtype(at::kByte));
  auto* to = packed.mutable_data_ptr<uint8_t>();
  std::memcpy(to, &head, sizeof head);
  std::memcpy(to + sizeof head, head_.data(), head_.size());
  to += aligned(static_cast<int64_t>(sizeof head) + head);
  for (const auto& tensor : tensors_) {
    device::require_data(tensor);
    if (tensor.numel() > 0) std::memcpy(to, tensor.const_data_ptr(), tensor.nbytes());
    to += aligned(static_cast<int64_t>(tensor.nbytes()));
  }
  return packed;
}

Unpacker::Unpacker(at::Tensor packed) : packed_(std::move(packed)), at_(0), head_end_(packed_.numel()), data_at_(0) {
  const auto head = static_cast<int64_t>(count());
  head_end_ = std::min(head_end_, at_ + head);
  data_at_ = aligned(at_ + head);
}

void Unpacker::bytes(void* to, size_t size) {
  if (static_cast<size_t>(head_end_ - at_) < size) {
    base::fail(ErrorKind::data, {}, "unpack", "a value needs {} bytes where {} are left; it was packed as another type",
               size, head_end_ - at_);
  }
  if (size > 0) std::memcpy(to, packed_.const_data_ptr<uint8_t>() + at_, size);
  at_ += static_cast<int64_t>(size);
}

size_t Unpacker::count() {
  int64_t number = 0;
  bytes(&number, sizeof number);
  return static_cast<size_t>(number);
}

at::Tensor Unpacker::tensor() {
  if (count() == 0) return {};
  const auto dtype = static_cast<at::ScalarType>(count());
  std::vector<int64_t> sizes(count());
  for (int64_t& size : sizes) bytes(&size, sizeof size);
  const auto options = at::TensorOptions().dtype(dtype);
  int64_t bytes = static_cast<int64_t>(options.dtype().itemsize());
  for (const int64_t size : sizes) bytes *= size;
  if (bytes == 0) return at::empty(sizes, options);
  if (packed_.numel() - data_at_ < bytes) {
    base::fail(ErrorKind::data, {}, "unpack", "a tensor needs {} bytes where {} are left", bytes,
               packed_.numel() - data_at_);
  }
  auto* const data = packed_.mutable_data_ptr<uint8_t>() + data_at_;
  data_at_ += aligned(bytes);
  return at::from_blob(
      data, sizes, [whole = packed_](void*) {}, options);
}

}  // namespace accelerate::tree::detail

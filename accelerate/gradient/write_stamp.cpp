// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/write_stamp.hpp"

#include <algorithm>
#include <cstring>

#include "accelerate/device/absent_memory.hpp"

namespace accelerate::gradient {
namespace {

void copy_head(WriteStamp& write_stamp, const at::Tensor& on_host) {
  std::memcpy(write_stamp.head.data(), on_host.const_data_ptr(), std::min(on_host.nbytes(), write_stamp.head.size()));
}

const void* data_of(const at::Tensor& tensor) {
  device::require_data(tensor);
  return tensor.has_storage() ? tensor.storage().data() : nullptr;
}

}  // namespace

WriteStamp write_stamp_of(const at::Tensor& parameter, bool reads_device) {
  WriteStamp write_stamp{.version = parameter._version()};
  if (!parameter.is_non_overlapping_and_dense()) return write_stamp;
  if (parameter.is_cpu()) {
    device::require_data(parameter);
    copy_head(write_stamp, parameter);
  } else if (reads_device) {
    const auto most = static_cast<int64_t>(write_stamp.head.size() / parameter.element_size());
    const at::Tensor head = parameter.detach().as_strided({std::min(parameter.numel(), most)}, {1});
    copy_head(write_stamp, head.cpu());
  }
  return write_stamp;
}

void WriteWatch::arm(const at::Tensor& parameter, bool reads_device) {
  armed_ = true;
  reads_device_ = reads_device;
  data_ = data_of(parameter);
  write_stamp_ = write_stamp_of(parameter, reads_device);
}

bool WriteWatch::has_changed(const at::Tensor& parameter) const {
  return armed_ && data_ == data_of(parameter) && write_stamp_ != write_stamp_of(parameter, reads_device_);
}

void WriteWatch::end_forward(const at::Tensor& parameter) {
  if (armed_ && unchanged_at_forward_) arm(parameter, reads_device_);
}

}  // namespace accelerate::gradient

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/write_stamp.hpp"

#include <algorithm>
#include <cstring>

namespace accelerate::gradient {
namespace {

void copy_head(WriteStamp& write_stamp, const at::Tensor& on_host) {
  std::memcpy(write_stamp.head.data(), on_host.const_data_ptr(), std::min(on_host.nbytes(), write_stamp.head.size()));
}

}  // namespace

WriteStamp write_stamp_of(const at::Tensor& parameter, bool reads_device) {
  WriteStamp write_stamp{.version = parameter._version()};
  if (!parameter.is_non_overlapping_and_dense()) return write_stamp;
  if (parameter.is_cpu()) {
    copy_head(write_stamp, parameter);
  } else if (reads_device) {
    const auto most = static_cast<int64_t>(write_stamp.head.size() / parameter.element_size());
    const at::Tensor head = parameter.detach().as_strided({std::min(parameter.numel(), most)}, {1});
    copy_head(write_stamp, head.cpu());
  }
  return write_stamp;
}

}  // namespace accelerate::gradient

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/imprint.hpp"

#include <algorithm>
#include <cstring>

namespace accelerate::gradient {
namespace {

void copy_head(Imprint& imprint, const at::Tensor& on_host) {
  std::memcpy(imprint.head.data(), on_host.const_data_ptr(), std::min(on_host.nbytes(), imprint.head.size()));
}

}  // namespace

Imprint imprint_of(const at::Tensor& parameter, bool reads_device) {
  Imprint imprint{.version = parameter._version()};
  if (!parameter.is_non_overlapping_and_dense()) return imprint;
  if (parameter.is_cpu()) {
    copy_head(imprint, parameter);
  } else if (reads_device) {
    const auto most = static_cast<int64_t>(imprint.head.size() / parameter.element_size());
    const at::Tensor head = parameter.detach().as_strided({std::min(parameter.numel(), most)}, {1});
    copy_head(imprint, head.cpu());
  }
  return imprint;
}

}  // namespace accelerate::gradient

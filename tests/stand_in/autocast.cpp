// SPDX-License-Identifier: Apache-2.0
// Autocast operator lists for the device: LibTorch's own lists, which are macros.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace stand_in::autocast {

// The macros require these namespaces.
using namespace at;            // NOLINT
using namespace at::autocast;  // NOLINT

#define STAND_IN_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define STAND_IN_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define STAND_IN_SET_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define STAND_IN_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  AT_FORALL_LOWER_PRECISION_FP(STAND_IN_LOWER)
  AT_FORALL_FP32(STAND_IN_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(STAND_IN_SET_DTYPE)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE)
  AT_FORALL_PROMOTE(STAND_IN_PROMOTE)
}

}  // namespace stand_in::autocast

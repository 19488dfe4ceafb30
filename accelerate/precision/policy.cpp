// SPDX-License-Identifier: Apache-2.0
#include "accelerate/precision/policy.hpp"

#include <ATen/autocast_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

namespace accelerate::precision {
namespace {

using c10::ScalarType;

std::string short_dtype_name(ScalarType dtype) {
  if (dtype == ScalarType::Half) return "fp16";
  if (dtype == ScalarType::BFloat16) return "bf16";
  return c10::toString(dtype);
}

bool supports(const LowPrecision& can, ScalarType dtype) { return dtype == ScalarType::Half ? can.fp16 : can.bf16; }

// Returns "no or fp16", "float32 and fp16" ...
std::string supported_precisions(std::string list, const char* and_also, const LowPrecision& can) {
  if (can.bf16) list += and_also + std::string("bf16");
  if (can.fp16) list += and_also + std::string("fp16");
  return list;
}

}  // namespace

Policy policy_of(env::Precision precision) {
  if (precision == env::Precision::no) return {};
  const auto compute = precision == env::Precision::bf16 ? ScalarType::BFloat16 : ScalarType::Half;
  return {.parameter = std::nullopt, .compute = compute, .output = ScalarType::Float};
}

Policy pure_bf16() {
  return {.parameter = ScalarType::BFloat16, .compute = ScalarType::BFloat16, .output = ScalarType::Float};
}

LowPrecision low_precision_of(c10::Device device) {
  LowPrecision can{.autocast = at::autocast::is_autocast_available(device.type()), .fp16 = true, .bf16 = true};
  if (device.is_cuda()) {
    // LibTorch's only query without CUDA headers; it requires compute capability 8.0.
    can.bf16 = at::detail::getCUDAHooks().supportsBFloat16ConvolutionWithCuDNNv8();
    return can;
  }
  try {
    const auto types = c10::impl::VirtualGuardImpl(device.type()).getDeviceCapability(device);
    can.fp16 = types.capability_data.supported_scalar_types.has_Half != 0;
    can.bf16 = types.capability_data.supported_scalar_types.has_BFloat16 != 0;
  } catch (const c10::Error&) {  // this device type has no query; its kernels will report a failure
  }
  return can;
}

void check_precision_policy(const Policy& policy, c10::Device device, const LowPrecision& can,
                            const RankContext& place) {
  if (policy.compute && *policy.compute != ScalarType::Half && *policy.compute != ScalarType::BFloat16) {
    base::fail(ErrorKind::usage, place, "mixed_precision",
               "the policy's compute dtype is {}, must be bfloat16 (bf16) or float16 (fp16)",
               short_dtype_name(*policy.compute));
  }
  if (policy.parameter && *policy.parameter != ScalarType::BFloat16 && *policy.parameter != ScalarType::Float) {
    base::fail(ErrorKind::usage, place, "mixed_precision",
               "the policy's parameter dtype is {}, must be bfloat16 (bf16) or float32; gradients of fp16 parameters "
               "overflow and cannot be unscaled",
               short_dtype_name(*policy.parameter));
  }
  if (policy.parameter == ScalarType::BFloat16 && policy.scales_loss()) {
    base::fail(ErrorKind::usage, place, "mixed_precision",
               "the policy's parameters are bf16 and its compute dtype is fp16; compute in bf16 too");
  }
  for (const auto& dtype : {policy.compute, policy.parameter}) {
    if (!dtype || *dtype == ScalarType::Float) continue;
    if (!can.autocast) {
      base::fail(ErrorKind::device, place, "mixed_precision",
                 "{} is requested, LibTorch has no autocast for {}; use no", short_dtype_name(*dtype), device.str());
    }
    if (supports(can, *dtype)) continue;
    base::fail(ErrorKind::device, place, "mixed_precision", "{} is requested, {} computes in {} only; use {}",
               short_dtype_name(*dtype), device.str(), supported_precisions("float32", " and ", can),
               supported_precisions("no", " or ", can));
  }
}

}  // namespace accelerate::precision

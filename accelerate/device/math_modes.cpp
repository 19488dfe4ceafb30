// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/math_modes.hpp"

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <mutex>
#include <string>

namespace accelerate::device {
namespace {

// LibTorch throws if the program has set the precision of a single backend in a way that contradicts this one.
std::optional<at::Float32MatmulPrecision> current_precision() {
  try {
    return at::globalContext().float32MatmulPrecision();
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

at::Float32MatmulPrecision of_libtorch(env::Float32MatmulPrecision precision) {
  switch (precision) {
    case env::Float32MatmulPrecision::high:
      return at::Float32MatmulPrecision::HIGH;
    case env::Float32MatmulPrecision::medium:
      return at::Float32MatmulPrecision::MEDIUM;
    case env::Float32MatmulPrecision::highest:
      break;
  }
  return at::Float32MatmulPrecision::HIGHEST;
}

}  // namespace

void set_math_modes(const std::optional<env::Float32MatmulPrecision>& float32_matmul_precision,
                    const std::optional<bool>& cudnn_benchmark) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  auto& context = at::globalContext();
  if (float32_matmul_precision && current_precision() != of_libtorch(*float32_matmul_precision)) {
    const auto name = env::kFloat32MatmulPrecisions.at(static_cast<size_t>(*float32_matmul_precision)).second;
    context.setFloat32MatmulPrecision(std::string(name));
  }
  if (cudnn_benchmark && context.benchmarkCuDNN() != *cudnn_benchmark) context.setBenchmarkCuDNN(*cudnn_benchmark);
}

}  // namespace accelerate::device

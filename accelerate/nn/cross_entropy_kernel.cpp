// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/cross_entropy_kernel.hpp"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <exception>

#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/env/parse.hpp"

namespace accelerate::nn {

const CrossEntropyKernel* CrossEntropyKernels::of(c10::Device device) {
  const std::lock_guard lock(mutex_);
  const auto [place, first] = made_.try_emplace(device.index());
  if (!first) return place->second.get();
  try {
    place->second = make_(device);
  } catch (const std::exception& error) {
    base::log(base::LogLevel::warning, {},
              "the fused kernel of linear_cross_entropy is not used on {}, LibTorch's operators are: {}", device.str(),
              error.what());
  }
  return place->second.get();
}

bool fused_cross_entropy_requested(const std::optional<bool>& option) {
  if (option) return *option;
  const char* const text = std::getenv("ACCELERATE_FUSED_CROSS_ENTROPY");
  if (text == nullptr || *text == '\0') return false;
  if (const auto flag = env::parse_bool(text)) return *flag;
  base::fail(ErrorKind::environment, {}, "linear_cross_entropy",
             "ACCELERATE_FUSED_CROSS_ENTROPY is '{}', must be true or false", text);
}

unsigned int cross_entropy_threads(int64_t classes, at::ScalarType dtype) {
  const auto packs = static_cast<uint64_t>(classes) * c10::elementSize(dtype) / 16;
  return static_cast<unsigned int>(std::clamp<uint64_t>(std::bit_floor(packs), 32, kCrossEntropyThreads));
}

}  // namespace accelerate::nn

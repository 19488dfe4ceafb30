// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/sample_generator.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/PhiloxRNGEngine.h>

namespace accelerate::data {

// The seed comes from Philox, because a Mersenne Twister returns similar first numbers for similar seeds. It uses the
// last of the 256 steps of a layer (SampleRandom).
at::Generator sample_generator(const ReadContext& pass, int64_t sample) {
  const uint64_t step = static_cast<uint64_t>(pass.epoch) << 32U | (pass.layer & 0xFFFFFFU) << 8U | 0xFFU;
  at::Philox4_32 engine(pass.seed, static_cast<uint64_t>(sample), step);
  const uint64_t high = engine();
  return at::detail::createCPUGenerator(high << 32U | engine());
}

}  // namespace accelerate::data

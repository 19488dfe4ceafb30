// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/transforms/sample_random.hpp"

namespace accelerate::data {
namespace {

// Layout of the 128-bit counter: 64 bits sample, 32 epoch, 24 layer, 8 draws of four numbers each.
uint64_t offset_of(const ReadContext& context) {
  return static_cast<uint64_t>(context.epoch) << 32U | (context.layer & 0xFFFFFFU) << 8U;
}

}  // namespace

SampleRandom::SampleRandom(const ReadContext& context, int64_t sample)
    : engine_(context.seed, static_cast<uint64_t>(sample), offset_of(context)) {}

int64_t SampleRandom::below(int64_t n) {
  return static_cast<int64_t>((static_cast<uint64_t>(engine_()) * static_cast<uint64_t>(n)) >> 32U);
}

double SampleRandom::uniform() { return static_cast<double>(engine_()) * 0x1p-32; }

}  // namespace accelerate::data

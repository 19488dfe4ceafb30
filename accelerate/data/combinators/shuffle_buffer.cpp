// SPDX-License-Identifier: Apache-2.0
#include "accelerate/data/combinators/shuffle_buffer.hpp"

#include <ATen/CPUGeneratorImpl.h>

namespace accelerate::data::detail {

// Nested layers draw independently: each has its own generator.
BufferRandom::BufferRandom(const ReadContext& context)
    : generator_(at::detail::createCPUGenerator(context.seed + static_cast<uint64_t>(context.epoch) +
                                                context.layer * 0x9e3779b97f4a7c15U)) {}

size_t BufferRandom::below(size_t limit) { return generator_.get<at::CPUGeneratorImpl>()->random64() % limit; }

}  // namespace accelerate::data::detail

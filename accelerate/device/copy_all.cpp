// SPDX-License-Identifier: Apache-2.0
#include "accelerate/device/copy_all.hpp"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <unordered_set>

#include "accelerate/base/parallel_for.hpp"
#include "accelerate/base/version_counter.hpp"
#include "accelerate/device/streaming_copy.hpp"

namespace accelerate::device {
namespace {

constexpr size_t kBlockBytes = size_t{4} << 20;

struct Block {
  char* to;
  const char* from;
  size_t bytes;
};

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == c10::kStrided && tensor.is_contiguous() && !tensor.is_conj() &&
         !tensor.is_neg();
}

bool are_bytes(const CopyPair& pair) {
  return is_plain(pair.to) && is_plain(pair.from) && pair.to.scalar_type() == pair.from.scalar_type() &&
         pair.to.sizes() == pair.from.sizes() && pair.to.nbytes() >= kBlockBytes;
}

}  // namespace

void copy_all(const std::vector<CopyPair>& pairs) {
  const at::NoGradGuard no_grad;
  std::vector<Block> blocks;
  std::vector<const CopyPair*> separate;
  std::unordered_set<const void*> written;
  for (const CopyPair& pair : pairs) {
    if (!are_bytes(pair) || !written.insert(pair.to.const_data_ptr()).second) {
      separate.push_back(&pair);
      continue;
    }
    auto* const to = static_cast<char*>(pair.to.mutable_data_ptr());
    const auto* const from = static_cast<const char*>(pair.from.const_data_ptr());
    for (size_t at = 0; at < pair.to.nbytes() && to != from; at += kBlockBytes) {
      blocks.push_back({to + at, from + at, std::min(kBlockBytes, pair.to.nbytes() - at)});
    }
    base::count_write(pair.to);  // as copy_() does
  }
  base::parallel_for(blocks.size(), [&](size_t i) { streaming_copy(blocks[i].to, blocks[i].from, blocks[i].bytes); });
  for (const CopyPair* pair : separate) pair->to.copy_(pair->from);
}

}  // namespace accelerate::device

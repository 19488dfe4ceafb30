// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/checksum.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>
#define XXH_INLINE_ALL  // use as a header-only library
#include <xxhash.h>

#include "accelerate/base/parallel_for.hpp"

namespace accelerate::archive {
namespace {

constexpr size_t kBlockBytes = size_t{4} << 20;

XXH64_hash_t hash_of(std::string_view bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

std::string digits_of(const std::vector<XXH64_hash_t>& blocks) {
  if (blocks.size() == 1) return fmt::format("{:016x}", blocks.front());
  std::vector<XXH64_canonical_t> sums(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) XXH64_canonicalFromHash(&sums[i], blocks[i]);
  return fmt::format("{:016x}", XXH3_64bits(sums.data(), sums.size() * sizeof(sums.front())));
}

}  // namespace

struct Checksum::State {
  State() { XXH3_64bits_reset(&block); }

  std::vector<XXH64_hash_t> blocks;  // complete blocks that are followed by more data
  XXH3_state_t block;
  size_t in_block = 0;
};

Checksum::Checksum() : state_(std::make_unique<State>()) {}
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;

void Checksum::add(std::string_view bytes) {
  while (!bytes.empty()) {
    if (state_->in_block == kBlockBytes) {
      state_->blocks.push_back(XXH3_64bits_digest(&state_->block));
      XXH3_64bits_reset(&state_->block);
      state_->in_block = 0;
    }
    const size_t taken = std::min(bytes.size(), kBlockBytes - state_->in_block);
    XXH3_64bits_update(&state_->block, bytes.data(), taken);
    state_->in_block += taken;
    bytes.remove_prefix(taken);
  }
}

std::string Checksum::text() const {
  auto blocks = state_->blocks;
  blocks.push_back(XXH3_64bits_digest(&state_->block));
  return digits_of(blocks);
}

std::string checksum_of(std::string_view bytes) {
  std::vector<XXH64_hash_t> blocks(std::max<size_t>(1, (bytes.size() + kBlockBytes - 1) / kBlockBytes));
  base::parallel_for(blocks.size(), [&](size_t i) { blocks[i] = hash_of(bytes.substr(i * kBlockBytes, kBlockBytes)); });
  return digits_of(blocks);
}

}  // namespace accelerate::archive

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/archive/checksum.hpp"

#include <fmt/format.h>
#define XXH_INLINE_ALL  // the header is all of it
#include <xxhash.h>

namespace accelerate::archive {
namespace {

std::string digits(XXH64_hash_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace

struct Checksum::State {
  XXH3_state_t xxh;
};

Checksum::Checksum() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh); }
Checksum::~Checksum() = default;
Checksum::Checksum(Checksum&&) noexcept = default;
Checksum& Checksum::operator=(Checksum&&) noexcept = default;

void Checksum::add(std::string_view bytes) { XXH3_64bits_update(&state_->xxh, bytes.data(), bytes.size()); }
std::string Checksum::text() const { return digits(XXH3_64bits_digest(&state_->xxh)); }

std::string checksum_of(std::string_view bytes) { return digits(XXH3_64bits(bytes.data(), bytes.size())); }

}  // namespace accelerate::archive

// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/sampler_fingerprint.hpp"

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "accelerate/comm/error_context.hpp"

namespace accelerate::prepared {
namespace {

std::vector<data::SamplerFingerprint> gather_fingerprints(const data::SamplerFingerprint& mine,
                                                          const comm::Group& group) {
  static_assert(std::is_trivially_copyable_v<data::SamplerFingerprint>);
  const std::string_view bytes(reinterpret_cast<const char*>(&mine), sizeof mine);
  const auto all = comm::with_operation_context("loader", "the ranks' orders are not compared, as debug mode does",
                                                group.place(), [&] { return group.all_gather_bytes(bytes); });
  std::vector<data::SamplerFingerprint> prints(all.size());
  for (size_t rank = 0; rank < all.size(); ++rank) std::memcpy(&prints[rank], all[rank].data(), sizeof mine);
  return prints;
}

std::string sampler_order_text(const data::SamplerFingerprint& print) {
  return fmt::format("order of epoch {} has {} samples, checksum {:016x}", print.epoch, print.samples, print.checksum);
}

}  // namespace

void check_same_sampler_order(const data::SamplerFingerprint& mine, const comm::Group& group) {
  if (group.size() == 1) return;
  const auto prints = gather_fingerprints(mine, group);
  for (size_t rank = 1; rank < prints.size(); ++rank) {
    if (prints[rank] == prints[0]) continue;
    base::fail(ErrorKind::usage, group.place(), "loader",
               "rank {}'s {}, rank 0's {}; they must be equal, or samples are repeated or missing. A sampler takes its "
               "order from the seed and the epoch that it is given and from nothing else; set_epoch() is for all ranks",
               rank, sampler_order_text(prints[rank]), sampler_order_text(prints[0]));
  }
}

}  // namespace accelerate::prepared

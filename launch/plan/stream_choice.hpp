// SPDX-License-Identifier: Apache-2.0
// Selects streams of ranks: --tee, --redirects, --local_ranks_filter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

namespace accelerate::launch {

/// Streams of workers in the format of torchrun's --tee and --redirects: "0" none, "1" stdout, "2" stderr, "3" both,
/// for all ranks; or by local rank, "0:3,1:0", each at most once. Ranks that are not listed have none.
class StreamChoice {
 public:
  /// Returns nothing for an invalid text.
  static std::optional<StreamChoice> parse(std::string_view text);
  static StreamChoice all() { return StreamChoice(3); }
  static StreamChoice none() { return StreamChoice(0); }

  /// \param stream  0 for stdout, 1 for stderr.
  [[nodiscard]] bool has(int64_t local_rank, size_t stream) const;

  /// The highest listed rank, or -1.
  [[nodiscard]] int64_t highest_rank() const;

  bool operator==(const StreamChoice&) const = default;

 private:
  explicit StreamChoice(unsigned everywhere) : everywhere_(everywhere) {}

  unsigned everywhere_;
  std::map<int64_t, unsigned> by_rank_{};
};

/// Parses "0,2", numbers of at least 0. Returns nothing for another text.
std::optional<std::vector<int64_t>> parse_rank_filter(std::string_view text);

}  // namespace accelerate::launch

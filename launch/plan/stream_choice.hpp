// SPDX-License-Identifier: Apache-2.0
// Which streams of which ranks: --tee, --redirects, --local_ranks_filter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

namespace accelerate::launch {

/// Streams of workers, as torchrun's --tee and --redirects name them: "0" none, "1" stdout, "2" stderr, "3" both, for
/// all; or by local rank, "0:3,1:0", each named once, none for those that are not named.
class StreamChoice {
 public:
  /// Returns nothing for an invalid text.
  static std::optional<StreamChoice> parse(std::string_view text);
  static StreamChoice all() { return StreamChoice(3); }
  static StreamChoice none() { return StreamChoice(0); }

  /// \param stream  0 for stdout, 1 for stderr.
  [[nodiscard]] bool has(int64_t local_rank, size_t stream) const;

  /// The highest rank that is named, or -1.
  [[nodiscard]] int64_t highest_rank() const;

  bool operator==(const StreamChoice&) const = default;

 private:
  explicit StreamChoice(unsigned everywhere) : everywhere_(everywhere) {}

  unsigned everywhere_;
  std::map<int64_t, unsigned> by_rank_{};
};

/// "0,2": numbers of at least 0. Nothing for another text.
std::optional<std::vector<int64_t>> parse_rank_filter(std::string_view text);

}  // namespace accelerate::launch

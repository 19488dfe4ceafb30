// SPDX-License-Identifier: Apache-2.0
// What a machine's guardian says of its ranks to whoever judges over all machines, as text: lines, an empty one at the
// end.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launch/run/hang_report.hpp"

namespace accelerate::launch {

/// The machine's ranks that run stand still, or (without ranks) move again.
struct Stillness {
  bool is_still = false;
  std::vector<StillRank> ranks{};  ///< rank, beats, what it waits in; no process, which means nothing elsewhere
};

std::string message_of(const Stillness& stillness);
/// Nothing for what message_of() did not write.
std::optional<Stillness> read_stillness(std::string_view message);

}  // namespace accelerate::launch

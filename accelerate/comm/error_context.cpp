// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/error_context.hpp"

#include <fmt/format.h>

namespace accelerate::comm {

Error with_context(std::string_view call, std::string_view what, const RankContext& place, const Error& error) {
  std::string_view text = error.what();
  const std::string prefix = base::prefix(place);
  if (text.starts_with(prefix)) text.remove_prefix(prefix.size());
  const size_t colon = text.find(": ");
  if (colon != std::string_view::npos) text.remove_prefix(colon + 2);
  return {ErrorKind::peer, place, call, fmt::format("{}: {}", what, text), error.missing_ranks()};
}

std::string first_name_and_count(std::string_view first, size_t count) {
  return count > 1 ? fmt::format("{} and {} more", first, count - 1) : std::string(first);
}

}  // namespace accelerate::comm

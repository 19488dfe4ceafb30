// SPDX-License-Identifier: Apache-2.0
#include "accelerate/checkpoint/collective_error.hpp"

#include "accelerate/base/exception_text.hpp"
#include "accelerate/comm/error_context.hpp"

namespace accelerate::checkpoint {

void rethrow_on_all_ranks(const comm::Group& group, const std::exception_ptr& mine, std::string_view operation,
                          std::string_view doing) {
  std::vector<std::string> all;
  if (group.size() > 1) {
    const std::string text = mine ? "!" + base::exception_text(mine) : "";
    all = comm::with_operation_context(operation, "it is unknown whether the other ranks failed", group.place(),
                                       [&] { return group.all_gather_bytes(text); });
  }
  if (mine) std::rethrow_exception(mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    base::fail(ErrorKind::io, group.place(), operation, "{}{}rank {} failed: {}", doing, doing.empty() ? "" : ": ",
               rank, all[rank].substr(1));
  }
}

}  // namespace accelerate::checkpoint

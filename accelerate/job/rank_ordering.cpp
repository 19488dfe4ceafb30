// SPDX-License-Identifier: Apache-2.0
#include "accelerate/job/rank_ordering.hpp"

#include "accelerate/comm/error_context.hpp"

namespace accelerate::job {

void barrier_for_call(const comm::Group& group, std::string_view call) {
  comm::with_operation_context(call, "the ranks did not synchronise", group.place(), [&] { group.barrier(); });
}

}  // namespace accelerate::job

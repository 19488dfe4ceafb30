// SPDX-License-Identifier: Apache-2.0
#include "accelerate/job/process_control.hpp"

#include "accelerate/comm/user_call.hpp"

namespace accelerate::job {

void wait_in_turn(const comm::Group& group, std::string_view call) {
  comm::in_user_call(call, "the ranks did not synchronise", group.place(), [&] { group.barrier(); });
}

}  // namespace accelerate::job

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string_view>

#include "accelerate/comm/group.hpp"

namespace accelerate::checkpoint {

/// Converts a failure on any rank to an exception on all ranks: the original on the failed rank, and an Error (io) that
/// names the first failed rank on the others. Collective.
///
/// \param mine   This rank's exception, or null.
/// \param doing  Activity for the message; may be empty.
void rethrow_on_all_ranks(const comm::Group& group, const std::exception_ptr& mine, std::string_view operation,
                          std::string_view doing = {});

}  // namespace accelerate::checkpoint

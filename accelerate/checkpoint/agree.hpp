// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string_view>

#include "accelerate/comm/group.hpp"

namespace accelerate::checkpoint {

/// Whatever went wrong on any rank is an exception on all: on the rank itself the one that it was, on the others an
/// Error (io) that names the first such rank. Collective.
///
/// mine    null: nothing
/// doing   what was being done, for the message; may be empty
void agree(const comm::Group& group, const std::exception_ptr& mine, std::string_view operation,
           std::string_view doing = {});

}  // namespace accelerate::checkpoint

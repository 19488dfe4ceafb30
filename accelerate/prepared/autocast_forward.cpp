// SPDX-License-Identifier: Apache-2.0
#include "accelerate/prepared/autocast_forward.hpp"

#include <c10/core/ScalarType.h>

#include "accelerate/base/log.hpp"

namespace accelerate::prepared {

void refuse_result(std::string_view type, c10::ScalarType output, const RankContext& place) {
  base::fail(ErrorKind::usage, place, "forward",
             "with mixed precision the tensors in its result would not become {}, because {} is or holds a struct "
             "without tree_members(), or a variant; give the struct a member function "
             "auto tree_members() {{ return std::tie(...); }} that names its members",
             c10::toString(output), type);
}

void warn_of_opaque_result(std::string_view type, c10::ScalarType output, const RankContext& place) {
  base::log_once(base::LogLevel::warning, place,
                 "forward: with mixed precision the tensors in its result do not become {} if they are members of "
                 "{}, because the members of this class are unknown; give it a member function "
                 "auto tree_members() {{ return std::tie(...); }} that returns its members",
                 c10::toString(output), type);
}

}  // namespace accelerate::prepared

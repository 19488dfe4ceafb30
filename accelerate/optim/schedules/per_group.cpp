// SPDX-License-Identifier: Apache-2.0
#include "accelerate/optim/schedules/per_group.hpp"

#include "accelerate/base/error.hpp"

namespace accelerate::optim {

std::vector<double> PerGroup::of(size_t groups, std::string_view schedule, std::string_view name) const {
  if (for_all_) return std::vector<double>(groups, values_.front());
  if (values_.size() != groups) {
    base::fail(ErrorKind::usage, {}, schedule,
               "{} has {} values, the optimizer {} parameter groups; give one for each, or one number for all", name,
               values_.size(), groups);
  }
  return values_;
}

}  // namespace accelerate::optim

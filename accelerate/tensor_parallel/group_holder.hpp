// SPDX-License-Identifier: Apache-2.0
// Private: a group in the saved data of an autograd function.
#pragma once

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <utility>

#include "accelerate/comm/group.hpp"

namespace accelerate::nn {

struct GroupHolder : torch::CustomClassHolder {
  explicit GroupHolder(comm::Group the_group) : group(std::move(the_group)) {}
  comm::Group group;
};

inline void save_group(torch::autograd::AutogradContext& context, const comm::Group& group) {
  context.saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<GroupHolder>(group));
}

inline comm::Group saved_group(torch::autograd::AutogradContext& context) {
  return c10::static_intrusive_pointer_cast<GroupHolder>(context.saved_data["group"].toCapsule())->group;
}

}  // namespace accelerate::nn

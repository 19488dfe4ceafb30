// SPDX-License-Identifier: Apache-2.0
#include "accelerate/tensor_parallel/group_functions.hpp"

#include "accelerate/tensor_parallel/collectives.hpp"
#include "accelerate/tensor_parallel/group_holder.hpp"

namespace accelerate::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// An autograd function without saved tensors. Its backward is another function of this file.
template <typename Step>
struct GroupFunction : torch::autograd::Function<GroupFunction<Step>> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input, int64_t dim, const comm::Group& group) {
    save_group(*context, group);
    context->saved_data["dim"] = dim;
    return Step::forward(input, dim, group);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const comm::Group group = saved_group(*context);
    return {Step::backward(gradients[0], context->saved_data["dim"].toInt(), group), at::Tensor(), at::Tensor()};
  }
};

struct Copy {
  static at::Tensor forward(const at::Tensor& input, int64_t /*dim*/, const comm::Group& /*group*/) {
    return input.view_as(input);
  }
  static at::Tensor backward(const at::Tensor& gradient, int64_t /*dim*/, const comm::Group& group) {
    return reduce_from_group(gradient, group);
  }
};

struct Reduce {
  static at::Tensor forward(const at::Tensor& input, int64_t /*dim*/, const comm::Group& group) {
    const at::Tensor sum = input.clone(at::MemoryFormat::Contiguous);
    add_up(sum, group);
    return sum;
  }
  static at::Tensor backward(const at::Tensor& gradient, int64_t /*dim*/, const comm::Group& group) {
    return copy_to_group(gradient, group);
  }
};

struct Scatter {
  static at::Tensor forward(const at::Tensor& input, int64_t dim, const comm::Group& group) {
    return own_part(input, dim, group).clone(at::MemoryFormat::Contiguous);
  }
  static at::Tensor backward(const at::Tensor& gradient, int64_t dim, const comm::Group& group) {
    return gather_from_group(gradient, dim, group);
  }
};

struct Gather {
  static at::Tensor forward(const at::Tensor& input, int64_t dim, const comm::Group& group) {
    return joined_parts(input, dim, group);
  }
  static at::Tensor backward(const at::Tensor& gradient, int64_t dim, const comm::Group& group) {
    return scatter_to_group(gradient, dim, group);
  }
};

struct GatherSequence {
  static at::Tensor forward(const at::Tensor& input, int64_t dim, const comm::Group& group) {
    return joined_parts(input, dim, group);
  }
  static at::Tensor backward(const at::Tensor& gradient, int64_t dim, const comm::Group& group) {
    return reduce_scatter_to_group(gradient, dim, group);
  }
};

struct ReduceScatter {
  static at::Tensor forward(const at::Tensor& input, int64_t dim, const comm::Group& group) {
    return PartOfSum(input, dim, group).wait();
  }
  static at::Tensor backward(const at::Tensor& gradient, int64_t dim, const comm::Group& group) {
    return gather_sequence_from_group(gradient, dim, group);
  }
};

template <typename Step>
at::Tensor apply_group_function(std::string_view call, const at::Tensor& input, int64_t dim, const comm::Group& group) {
  return GroupFunction<Step>::apply(input, checked_dim(call, input, dim, group), group);
}

}  // namespace

at::Tensor copy_to_group(const at::Tensor& input, const comm::Group& group) {
  return group.size() == 1 ? input : GroupFunction<Copy>::apply(input, 0, group);
}

at::Tensor reduce_from_group(const at::Tensor& input, const comm::Group& group) {
  return group.size() == 1 ? input : GroupFunction<Reduce>::apply(input, 0, group);
}

at::Tensor scatter_to_group(const at::Tensor& input, int64_t dim, const comm::Group& group) {
  const int64_t number = checked_dim("scatter_to_group", input, dim, group);
  part_size("scatter_to_group", "the size of dimension " + std::to_string(number), input.size(number), group);
  return apply_group_function<Scatter>("scatter_to_group", input, dim, group);
}

at::Tensor gather_from_group(const at::Tensor& input, int64_t dim, const comm::Group& group) {
  return apply_group_function<Gather>("gather_from_group", input, dim, group);
}

at::Tensor gather_sequence_from_group(const at::Tensor& input, int64_t dim, const comm::Group& group) {
  return apply_group_function<GatherSequence>("gather_sequence_from_group", input, dim, group);
}

at::Tensor reduce_scatter_to_group(const at::Tensor& input, int64_t dim, const comm::Group& group) {
  const int64_t number = checked_dim("reduce_scatter_to_group", input, dim, group);
  part_size("reduce_scatter_to_group", "the size of dimension " + std::to_string(number), input.size(number), group);
  return apply_group_function<ReduceScatter>("reduce_scatter_to_group", input, dim, group);
}

}  // namespace accelerate::nn

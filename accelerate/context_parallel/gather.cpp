// SPDX-License-Identifier: Apache-2.0
#include "accelerate/context_parallel/gather.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <string>
#include <utility>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/comm/error_context.hpp"

namespace accelerate::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr std::string_view kSequenceWhat = "the parts of the sequence are not put together";

/// A group in the saved data of an autograd function.
struct ContextGroupHolder : torch::CustomClassHolder {
  explicit ContextGroupHolder(comm::Group the_group) : group(std::move(the_group)) {}
  comm::Group group;
};

void save_call(AutogradContext& context, const std::string& call, const comm::Group& group) {
  context.saved_data["call"] = call;
  context.saved_data["group"] = c10::IValue::make_capsule(c10::make_intrusive<ContextGroupHolder>(group));
}

comm::Group group_of(AutogradContext& context) {
  return c10::static_intrusive_pointer_cast<ContextGroupHolder>(context.saved_data["group"].toCapsule())->group;
}

std::string call_of(AutogradContext& context) { return context.saved_data["call"].toStringRef(); }

at::Tensor reduce_of_sequence(std::string_view call, const at::Tensor& parts, const comm::Group& group);

struct GatherSequenceParts : torch::autograd::Function<GatherSequenceParts> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& part, const std::string& call,
                            const comm::Group& group) {
    save_call(*context, call, group);
    const at::Tensor input = part.contiguous();
    std::vector<int64_t> sizes = input.sizes().vec();
    sizes.insert(sizes.begin(), group.size());
    const at::Tensor output = at::empty(sizes, input.options());
    comm::with_operation_context(call, kSequenceWhat, group.place(),
                                 [&] { group.all_gather_async(output.flatten(0, 1), input).wait(); });
    return output;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {reduce_of_sequence(call_of(*context), gradients[0], group_of(*context)), at::Tensor(), at::Tensor()};
  }
};

struct ReduceSequenceParts : torch::autograd::Function<ReduceSequenceParts> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& parts, const std::string& call,
                            const comm::Group& group) {
    save_call(*context, call, group);
    const at::Tensor input = parts.contiguous();
    const at::Tensor output = at::empty(input.sizes().slice(1), input.options());
    comm::with_operation_context(call, kSequenceWhat, group.place(),
                                 [&] { group.reduce_scatter_async(output, input.flatten(0, 1)).wait(); });
    return output;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {gather_of_sequence(call_of(*context), gradients[0], group_of(*context)), at::Tensor(), at::Tensor()};
  }
};

at::Tensor reduce_of_sequence(std::string_view call, const at::Tensor& parts, const comm::Group& group) {
  return ReduceSequenceParts::apply(parts, std::string(call), group);
}

}  // namespace

at::Tensor gather_of_sequence(std::string_view call, const at::Tensor& part, const comm::Group& group) {
  return GatherSequenceParts::apply(part, std::string(call), group);
}

at::Tensor in_token_order(const at::Tensor& parts, int64_t dim) {
  // The backward of these views joins gradients, while that of narrow() would fill a whole tensor for each chunk.
  const std::vector<at::Tensor> halves = parts.chunk(2, dim + 1);
  std::vector<at::Tensor> chunks = halves[0].unbind(0);
  const std::vector<at::Tensor> last = halves[1].unbind(0);
  chunks.insert(chunks.end(), last.rbegin(), last.rend());
  return at::cat(chunks, dim);
}

void check_two_chunks(std::string_view call, std::string_view what, const at::Tensor& part, int64_t dim,
                      const comm::Group& group) {
  if (part.size(dim) % 2 == 0) return;
  base::fail(ErrorKind::usage, group.place(), call,
             "{} is [{}] with {} tokens in dimension {}, must have an even number, because a rank has 2 chunks of the "
             "sequence; split the sequence with context_parallel_split()",
             what, c10::Join(", ", part.sizes()), part.size(dim), dim);
}

}  // namespace accelerate::nn

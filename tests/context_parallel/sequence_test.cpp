// SPDX-License-Identifier: Apache-2.0
// Parts of a sequence and their order.
#include "tests/tensor_parallel/support.hpp"
//
#include <vector>

#include "accelerate/context_parallel/sequence.hpp"

using namespace tensor_parallel_testing;
using accelerate::comm::run_threads;

namespace {

std::vector<int64_t> numbers_in(const at::Tensor& tensor) {
  const at::Tensor own = tensor.contiguous();
  return {own.data_ptr<int64_t>(), own.data_ptr<int64_t>() + own.numel()};
}

}  // namespace

TEST_CASE("rank r of P has the chunks r and 2P - 1 - r of a sequence") {
  run_threads(2, [](const Group& group) {
    const auto own = numbers_in(split_sequence(group, torch::arange(8), 0));
    CHECK(own == (group.rank() == 0 ? std::vector<int64_t>{0, 1, 6, 7} : std::vector<int64_t>{2, 3, 4, 5}));
  });
  run_threads(3, [](const Group& group) {
    const auto own = numbers_in(split_sequence(group, torch::arange(6), 0));
    CHECK(own == std::vector<int64_t>{group.rank(), 5 - group.rank()});
  });
}

TEST_CASE("merge_sequence() restores the sequence in any dimension and dtype") {
  for (const int64_t ranks : {1, 2, 4}) {
    run_threads(ranks, [](const Group& group) {
      for (const int64_t dim : {0, 1, -1}) {
        const at::Tensor whole = numbers({8, 16, 24}, 1).transpose(0, 2).slice(2, 0, 8);  // not contiguous
        const at::Tensor part = split_sequence(group, whole, dim);
        CHECK(part.size(dim) == whole.size(dim) / group.size());
        CHECK(merge_sequence(group, part, dim).equal(whole));
      }
      const at::Tensor flags = numbers({8}, 2) > 0;
      CHECK(merge_sequence(group, split_sequence(group, flags, 0), 0).equal(flags));
    });
  }
}

TEST_CASE("in a group of one rank the tensor itself is the part and the whole") {
  const at::Tensor whole = torch::arange(3);
  CHECK(split_sequence(Group(), whole, 0).is_same(whole));
  CHECK(merge_sequence(Group(), whole, 0).is_same(whole));
}

TEST_CASE("gradients flow back through a part, and are added up for a merged sequence") {
  run_threads(2, [](const Group& group) {
    at::Tensor whole = numbers({8}, 1).requires_grad_();
    split_sequence(group, whole, 0).pow(2).sum().backward();
    const at::Tensor is_own = merge_sequence(group, torch::full({4}, group.rank(), at::kDouble), 0) == group.rank();
    CHECK(close(whole.grad(), 2 * whole.detach() * is_own));

    at::Tensor part = split_sequence(group, whole.detach(), 0).requires_grad_();
    const at::Tensor loss = (merge_sequence(group, part, 0).pow(3) * (group.rank() + 1)).sum();
    const at::Tensor gradient = torch::autograd::grad({loss}, {part}, {}, true, true)[0];
    CHECK(close(gradient, 9 * part.detach().pow(2)));  // of the losses of both ranks
    gradient.sum().backward();
    CHECK(close(part.grad(), 18 * part.detach()));
  });
}

// SPDX-License-Identifier: Apache-2.0
// Models with split layers train like one process with LibTorch's layers, for any kind of ranks. The including file
// defines with_tensor_parallel_ranks().
#pragma once

#include "tests/tensor_parallel/support.hpp"

namespace tensor_parallel_testing {

TEST_CASE("a pair of linear layers has the output and gradients of one process, for inputs of every kind") {
  with_tensor_parallel_ranks([](const Group& group) {
    auto stock = seeded([] { return StockMlp(); });
    auto split = seeded([&] { return SplitMlp(group); });
    check_same_state(split, stock, 0);
    const std::vector<at::Tensor> inputs{numbers({4, 6}, 1),
                                         numbers({2, 3, 6}, 2),
                                         numbers({6}, 3),
                                         numbers({6, 4}, 4).t(),
                                         numbers({3, 2, 6}, 5).transpose(0, 1),
                                         numbers({0, 6}, 6),
                                         numbers({1, 6}, 7).expand({5, 6})};
    for (const at::Tensor& input : inputs) {
      CAPTURE(input.sizes());
      const at::Tensor mine = input.clone(at::MemoryFormat::Preserve).requires_grad_(true);
      const at::Tensor theirs = input.clone(at::MemoryFormat::Preserve).requires_grad_(true);
      stock->zero_grad();
      split->zero_grad();
      const at::Tensor seen = split(mine), expected = stock(theirs);
      CHECK(close(seen, expected.detach()));
      (seen * numbers(seen.sizes(), 9)).sum().backward();
      (expected * numbers(seen.sizes(), 9)).sum().backward();
      CHECK(close(mine.grad(), theirs.grad()));
      check_same_gradients(split, stock);
    }
  });
}

TEST_CASE("20 AdamW steps of an MLP and of a convolutional network are those of one process") {
  with_tensor_parallel_ranks([](const Group& group) {
    {
      auto stock = seeded([] { return StockMlp(); });
      auto split = seeded([&] { return SplitMlp(group); });
      const auto loss = [](auto& net) {
        return [&net](uint64_t step) { return (net(numbers({4, 6}, step)) - 0.3).square().mean(); };
      };
      train_both(split, stock, loss(split), loss(stock));
    }
    auto stock = seeded([] { return StockConvNet(); });
    auto split = seeded([&] { return SplitConvNet(group); });
    const auto loss = [](auto& net) {
      return [&net](uint64_t step) { return (net(numbers({2, 3, 6, 6}, step)) - 0.3).square().mean(); };
    };
    train_both(split, stock, loss(split), loss(stock));
    CHECK(close(split(numbers({3, 6, 6}, 5)), stock(numbers({3, 6, 6}, 5)), 1e-10));
  });
}

TEST_CASE("20 AdamW steps of a language model are those of one process, with and without sequence parallelism") {
  with_tensor_parallel_ranks([](const Group& group) {
    for (const bool sequence : {false, true}) {
      CAPTURE(sequence);
      auto stock = seeded([] { return StockGpt(); });
      auto split = seeded([&] { return SplitGpt(group, sequence); });
      check_same_state(split, stock, 0);
      const auto loss = [](auto& net) {
        return [&net](uint64_t step) { return net->loss(tokens({8, 2}, step, 12), tokens({8, 2}, step + 50, 12)); };
      };
      train_both(split, stock, loss(split), loss(stock));
    }
  });
}

TEST_CASE("whole state loads into the layers of LibTorch and into any number of ranks") {
  with_tensor_parallel_ranks([](const Group& group) {
    auto split = seeded([&] { return SplitGpt(group); });
    const StateDict whole = whole_state_dict(*split);
    auto stock = seeded([] { return StockGpt(); }, 99);
    load_whole_state_dict(*stock, whole);
    check_same_state(split, stock, 0);
    auto other = seeded([&] { return SplitGpt(group); }, 98);
    load_whole_state_dict(*other, whole);
    check_same_state(other, stock, 0);
    auto alone = seeded([] { return SplitGpt(Group()); }, 97);
    load_whole_state_dict(*alone, whole);
    check_same_state(alone, stock, 0);
  });
}

TEST_CASE("every step between layers has the gradient of the same step on whole tensors") {
  with_tensor_parallel_ranks([](const Group& group) {
    const int64_t ranks = group.size(), rank = group.rank();
    for (const int64_t dim : {0, 1, -1}) {
      CAPTURE(dim);
      const at::Tensor whole = numbers({4, 4, 8}, 3), weights = numbers({4, 4, 8}, 4);
      const auto part = [&](const at::Tensor& tensor) { return tensor.chunk(ranks, dim)[static_cast<size_t>(rank)]; };

      at::Tensor x = whole.clone().requires_grad_(true);
      at::Tensor y = scatter_to_group(x, dim, group);
      CHECK(close(y, part(whole), 0));
      (y * part(weights)).sum().backward();
      CHECK(close(x.grad(), weights, 0));

      x = part(whole).clone().requires_grad_(true);
      y = gather_from_group(x, dim, group);
      CHECK(close(y, whole, 0));
      (y * weights).sum().backward();
      CHECK(close(x.grad(), part(weights), 0));

      // Each rank multiplies with other weights; the gradient is their sum.
      x = part(whole).clone().requires_grad_(true);
      y = gather_sequence_from_group(x, dim, group);
      CHECK(close(y, whole, 0));
      (y * weights * static_cast<double>(rank + 1)).sum().backward();
      const double all = static_cast<double>(ranks * (ranks + 1)) / 2;
      CHECK(close(x.grad(), part(weights) * all));

      x = (whole * static_cast<double>(rank + 1)).requires_grad_(true);
      y = reduce_scatter_to_group(x, dim, group);
      CHECK(close(y, part(whole) * all));
      (y * part(weights)).sum().backward();
      CHECK(close(x.grad(), weights, 0));
    }
    at::Tensor x = numbers({3, 2}, 1).requires_grad_(true);
    (copy_to_group(x, group) * static_cast<double>(rank + 1)).sum().backward();
    CHECK(close(x.grad(), torch::full({3, 2}, static_cast<double>(ranks * (ranks + 1)) / 2, at::kDouble)));
    x = numbers({3, 2}, 1).requires_grad_(true);
    const at::Tensor sum = reduce_from_group(x, group);
    CHECK(close(sum, x.detach() * static_cast<double>(ranks)));
    CHECK(close(x.detach(), numbers({3, 2}, 1), 0));  // the input is not changed
    sum.pow(2).sum().backward();
    CHECK(close(x.grad(), 2 * sum.detach()));
  });
}

}  // namespace tensor_parallel_testing

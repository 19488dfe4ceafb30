// SPDX-License-Identifier: Apache-2.0
// Options of the split layers against LibTorch's layers, on two ranks.
#include "tests/tensor_parallel/support.hpp"
//
#include <ATen/autocast_mode.h>

#include <cmath>
#include <sstream>

#include "accelerate/tensor_parallel/dropout.hpp"

using namespace tensor_parallel_testing;
using accelerate::comm::run_threads;
using torch::nn::MultiheadAttention;
using torch::nn::MultiheadAttentionOptions;

namespace {

/// Output and gradients of both layers for one input.
template <typename Split, typename Stock>
void check_layer(Split& split, Stock& stock, const at::Tensor& input, double tolerance = 1e-12) {
  const at::Tensor mine = input.clone().requires_grad_(true), theirs = input.clone().requires_grad_(true);
  const at::Tensor seen = split(mine), expected = stock(theirs);
  CHECK(close(seen.detach(), expected.detach(), tolerance));
  const at::Tensor weights = numbers(expected.sizes(), 77, expected.scalar_type());
  (seen * weights).sum().backward();
  (expected * weights).sum().backward();
  CHECK(close(mine.grad(), theirs.grad(), tolerance));
  check_same_gradients(split, stock, tolerance);
}

template <typename Layer>
Layer in_double(Layer layer) {
  layer->to(at::kDouble);
  return layer;
}

template <typename Holder>
std::string printed(const Holder& layer) {
  std::ostringstream text;
  layer->pretty_print(text);
  return text.str();
}

}  // namespace

TEST_CASE("a linear layer alone takes and returns whole tensors if its options request it") {
  run_threads(2, [](const Group& group) {
    for (const bool bias : {true, false}) {
      CAPTURE(bias);
      const auto stock_of = [&] {
        return seeded([&] { return in_double(torch::nn::Linear(torch::nn::LinearOptions(4, 6).bias(bias))); });
      };
      auto stock = stock_of();
      auto column = seeded([&] {
        return in_double(ColumnParallelLinear(ColumnParallelLinearOptions(4, 6).bias(bias).gather_output(true), group));
      });
      check_layer(column, stock, numbers({3, 4}, 1));
      stock = stock_of();
      auto row = seeded([&] {
        return in_double(RowParallelLinear(RowParallelLinearOptions(4, 6).bias(bias).input_is_parallel(false), group));
      });
      check_layer(row, stock, numbers({2, 3, 4}, 2));
    }
  });
}

TEST_CASE("attention with other keys and values, biases and every kind of mask") {
  run_threads(2, [](const Group& group) {
    auto stock = seeded([] { return in_double(MultiheadAttention(MultiheadAttentionOptions(8, 4))); });
    auto split =
        seeded([&] { return in_double(ParallelMultiheadAttention(ParallelMultiheadAttentionOptions(8, 4), group)); });
    check_same_state(split, stock, 0);
    const at::Tensor query = numbers({5, 2, 8}, 1), key = numbers({3, 2, 8}, 2), value = numbers({3, 2, 8}, 3);
    const at::Tensor padding = torch::tensor({{false, false, true}, {false, true, false}});
    const at::Tensor added = numbers({5, 3}, 4);
    const at::Tensor future = torch::ones({5, 3}, at::kBool).triu(1);
    // LibTorch's layer in C++ adds a bool mask as 0 and 1, so it receives the numbers that the mask means.
    const at::Tensor infinite = torch::zeros({5, 3}, at::kDouble).masked_fill(future, -INFINITY);
    struct Inputs {
      at::Tensor query, key, value, padding, mask, stock_mask;
    };
    int64_t number = 0;
    for (const auto& one : std::vector<Inputs>{{query, key, key, {}, {}, {}},
                                               {query, key, value, {}, {}, {}},
                                               {key, key, key, padding, {}, {}},
                                               {query, key, value, padding, added, added},
                                               {query, key, value, {}, future, infinite},
                                               {query, key, value, padding, added.expand({8, 5, 3}), added}}) {
      CAPTURE(number);
      ++number;
      stock->zero_grad();
      split->zero_grad();
      const at::Tensor mine = one.query.clone().requires_grad_(true), theirs = one.query.clone().requires_grad_(true);
      const bool is_self = one.query.is_same(one.key);
      const at::Tensor seen = split(mine, is_self ? mine : one.key, is_self ? mine : one.value, one.padding, one.mask);
      const at::Tensor expected = std::get<0>(
          stock(theirs, is_self ? theirs : one.key, is_self ? theirs : one.value, one.padding, true, one.stock_mask));
      CHECK(close(seen, expected));
      seen.pow(2).sum().backward();
      expected.pow(2).sum().backward();
      CHECK(close(mine.grad(), theirs.grad()));
      check_same_gradients(split, stock);
    }
    ParallelMultiheadAttention taken(std::make_shared<ParallelMultiheadAttentionImpl>(*stock, group));
    ParallelMultiheadAttention alone(std::make_shared<ParallelMultiheadAttentionImpl>(*stock, Group()));
    CHECK(close(taken(query, key, value), split(query, key, value)));
    const at::Tensor of_heads = numbers({2 * 4, 5, 3}, 5);  // another mask for each head of each sequence
    CHECK(close(taken(query, key, value, at::Tensor(), of_heads), alone(query, key, value, at::Tensor(), of_heads)));
  });
}

TEST_CASE("attention weights have another dropout mask on each rank, and none in evaluation") {
  run_threads(2, [](const Group& group) {
    auto split = seeded([&] {
      return in_double(ParallelMultiheadAttention(ParallelMultiheadAttentionOptions(8, 4).dropout(0.5), group));
    });
    auto plain =
        seeded([&] { return in_double(ParallelMultiheadAttention(ParallelMultiheadAttentionOptions(8, 4), group)); });
    const at::Tensor x = numbers({4, 2, 8}, 1);
    CHECK_FALSE(close(split(x, x, x), plain(x, x, x)));
    split->eval();
    CHECK(close(split(x, x, x), plain(x, x, x)));
  });
}

TEST_CASE("dropout differs by rank in split regions only, and repeats with the state of the default generator") {
  for (const int64_t ranks : {1, 2}) {
    run_threads(ranks, [](const Group& group) {
      const at::Tensor x = torch::ones({200}, at::kDouble);
      ParallelDropout layer(0.25, group);
      // Threads share the default generator, so one rank after the other draws.
      const auto draw = [&] { return seeded([&] { return std::pair(layer(x), torch::dropout(x, 0.25, true)); }); };
      const auto [own, equal] = draw();
      CHECK(torch::equal(draw().first, own));
      const auto all = group.all_gather_list(own), whole = group.all_gather_list(equal);
      for (int64_t rank = 1; rank < group.size(); ++rank) {
        CHECK_FALSE(torch::equal(all[0], all[static_cast<size_t>(rank)]));
        CHECK(torch::equal(whole[0], whole[static_cast<size_t>(rank)]));
      }
      CHECK(torch::equal(own.masked_select(own != 0),
                         torch::full({own.count_nonzero().item<int64_t>()}, 1 / 0.75, at::kDouble)));
      CHECK(own.count_nonzero().item<double>() == doctest::Approx(150).epsilon(0.15));
      CHECK(torch::equal(ParallelDropout(0.0, group)(x), x));
      CHECK(torch::equal(ParallelDropout(1.0, group)(x), torch::zeros_like(x)));
      layer->eval();
      CHECK(torch::equal(layer(x), x));
    });
  }
}

TEST_CASE("an embedding ignores the gradient of its padding index, which any rank may have") {
  run_threads(2, [](const Group& group) {
    for (const int64_t padding : {1, 4, -1}) {
      CAPTURE(padding);
      auto stock = seeded(
          [&] { return in_double(torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 3).padding_idx(padding))); });
      auto split = seeded([&] {
        return in_double(VocabParallelEmbedding(VocabParallelEmbeddingOptions(6, 3).padding_idx(padding), group));
      });
      check_same_state(split, stock, 0);
      const at::Tensor ids = torch::tensor({{0, 1, 2}, {3, 4, 5}});
      CHECK(close(split(ids), stock(ids)));
      split(ids).pow(2).sum().backward();
      stock(ids).pow(2).sum().backward();
      check_same_gradients(split, stock);
      VocabParallelEmbedding taken(*stock, group);
      CHECK(close(taken(ids.to(at::kInt)), stock(ids)));
    }
  });
}

TEST_CASE("losses of split classes are those of cross_entropy for every option") {
  run_threads(2, [](const Group& group) {
    const at::Tensor whole = numbers({2, 5, 8}, 1) * 20;
    const at::Tensor target = torch::tensor({{0, 7, -100, 3, 4}, {5, -100, 1, 2, 6}});
    namespace F = torch::nn::functional;
    for (const double smoothing : {0.0, 0.1}) {
      for (const auto reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
        for (const int64_t ignored : {-100, 3}) {
          const at::Tensor wanted = ignored == 3 ? target.clamp_min(0) : target;
          const at::Tensor mine = whole.chunk(2, -1)[static_cast<size_t>(group.rank())].clone().requires_grad_(true);
          const at::Tensor theirs = whole.clone().requires_grad_(true);
          F::CrossEntropyFuncOptions options =
              F::CrossEntropyFuncOptions().ignore_index(ignored).label_smoothing(smoothing);
          if (reduction == Reduction::sum) options.reduction(torch::kSum);
          if (reduction == Reduction::none) options.reduction(torch::kNone);
          const at::Tensor expected = F::cross_entropy(theirs.flatten(0, 1), wanted.flatten(), options);
          const at::Tensor seen = vocab_parallel_cross_entropy(
              mine, wanted, group, {.ignore_index = ignored, .label_smoothing = smoothing, .reduction = reduction});
          CHECK(close(seen.flatten(), expected.flatten()));
          seen.pow(2).sum().backward();
          expected.pow(2).sum().backward();
          CHECK(close(mine.grad(), theirs.grad().chunk(2, -1)[static_cast<size_t>(group.rank())]));
        }
      }
    }
    CHECK(vocab_parallel_cross_entropy(whole[0], torch::full({5}, -100, at::kLong), group).isnan().item<bool>());
    CHECK(vocab_parallel_cross_entropy(torch::zeros({0, 4}), torch::zeros({0}, at::kLong), group,
                                       {.reduction = Reduction::sum})
              .item<double>() == 0);
  });
}

TEST_CASE("bfloat16 layers and autocast compute in bfloat16") {
  run_threads(2, [](const Group& group) {
    auto exact = seeded([] { return StockMlp(); });
    auto split = seeded([&] { return SplitMlp(group); });
    const at::Tensor x = numbers({4, 6}, 1);
    split->to(at::kBFloat16);
    const at::Tensor low = split(x.to(at::kBFloat16));
    CHECK((low.scalar_type() == at::kBFloat16));
    CHECK(torch::allclose(low.to(at::kDouble), exact(x), 0, 0.03));

    split->to(at::kFloat);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const at::Tensor cast = split(x.to(at::kFloat));
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    CHECK((cast.scalar_type() == at::kBFloat16));
    cast.to(at::kFloat).sum().backward();
    exact(x).sum().backward();
    CHECK((split->up->weight.grad().scalar_type() == at::kFloat));
    const StateDict gradients = whole_gradients(split);
    for (const auto& item : exact->named_parameters()) {
      CHECK(torch::allclose(gradients[item.key()].to(at::kDouble), item.value().grad(), 0, 0.05));
    }
  });
}

TEST_CASE("no_grad keeps no graph, and a retained graph gives the same gradients twice") {
  run_threads(2, [](const Group& group) {
    auto split = seeded([&] { return SplitGpt(group); });
    const at::Tensor ids = tokens({8, 2}, 1, 12), next = tokens({8, 2}, 2, 12);
    {
      const torch::NoGradGuard no_grad;
      CHECK_FALSE(split->loss(ids, next).requires_grad());
    }
    const at::Tensor loss = split->loss(ids, next);
    loss.backward({}, /*retain_graph=*/true);
    std::vector<at::Tensor> once;
    for (const auto& parameter : split->parameters()) once.push_back(parameter.grad().clone());
    loss.backward();
    size_t i = 0;
    for (const auto& parameter : split->parameters()) CHECK(close(parameter.grad(), 2 * once[i++]));
    CHECK_THROWS_AS(loss.backward(), c10::Error);
  });
}

TEST_CASE("frozen layers keep the gradients of the others") {
  run_threads(2, [](const Group& group) {
    auto split = seeded([&] { return SplitMlp(group); });
    auto stock = seeded([] { return StockMlp(); });
    split->up->weight.requires_grad_(false);
    split->down->weight.requires_grad_(false);
    const at::Tensor x = numbers({3, 6}, 1);
    split(x).sum().backward();
    stock(x).sum().backward();
    CHECK_FALSE(split->up->weight.grad().defined());
    CHECK(close(split->up->bias.grad(), stock->up->bias.grad().chunk(2)[static_cast<size_t>(group.rank())]));
    CHECK(close(split->down->bias.grad(), stock->down->bias.grad()));
  });
}

TEST_CASE("steps between layers have second derivatives") {
  run_threads(2, [](const Group& group) {
    const at::Tensor x = numbers({2, 4}, 1).requires_grad_(true);
    // On every rank: y = x^3 / 2 summed over two ranks.
    const at::Tensor y = reduce_from_group(copy_to_group(x, group).pow(3) / 2, group);
    const at::Tensor first = torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
    CHECK(close(first, 3 * x.pow(2)));
    CHECK(close(torch::autograd::grad({first.sum()}, {x})[0], 6 * x));
  });
}

TEST_CASE("a clone of a split layer has the same parameters and its own memory") {
  run_threads(2, [](const Group& group) {
    auto split = seeded([&] { return SplitMlp(group); });
    const auto copy = seeded([&] { return std::dynamic_pointer_cast<ColumnParallelLinearImpl>(split->up->clone()); });
    CHECK(torch::equal(copy->weight, split->up->weight));
    CHECK(copy->group().size() == 2);
    split->eval();
    CHECK_FALSE(seeded([&] { return split->up->clone(); })->is_training());
    {
      const torch::NoGradGuard no_grad;
      copy->weight.zero_();
    }
    CHECK(split->up->weight.abs().sum().item<double>() > 0);
    SequenceParallelLayerNorm norm(torch::nn::LayerNormOptions({4}), group);
    CHECK(std::dynamic_pointer_cast<SequenceParallelLayerNormImpl>(norm->clone()) != nullptr);
  });
}

TEST_CASE("layers print their options and the number of ranks") {
  run_threads(2, [](const Group& group) {
    CHECK(printed(ColumnParallelLinear(ColumnParallelLinearOptions(4, 6).gather_output(true).sequence_dim(0), group)) ==
          "accelerate::nn::ColumnParallelLinear(in_features=4, out_features=6, bias=true, ranks=2, gather_output=true, "
          "sequence_dim=0)");
    CHECK(printed(RowParallelLinear(RowParallelLinearOptions(4, 6).bias(false).input_is_parallel(false), group)) ==
          "accelerate::nn::RowParallelLinear(in_features=4, out_features=6, bias=false, ranks=2, "
          "input_is_parallel=false)");
    CHECK(printed(VocabParallelEmbedding(VocabParallelEmbeddingOptions(4, 6).padding_idx(1), group)) ==
          "accelerate::nn::VocabParallelEmbedding(num_embeddings=4, embedding_dim=6, ranks=2, padding_idx=1)");
    CHECK(printed(ColumnParallelConv2d(torch::nn::Conv2dOptions(3, 4, 3).stride(2), group)) ==
          "accelerate::nn::ColumnParallelConv2d(3, 4, kernel_size=[3, 3], stride=[2, 2], bias=true, ranks=2)");
    CHECK(printed(RowParallelConv2d(torch::nn::Conv2dOptions(4, 3, 1), group)) ==
          "accelerate::nn::RowParallelConv2d(4, 3, kernel_size=[1, 1], stride=[1, 1], bias=true, ranks=2)");
    CHECK(printed(ParallelMultiheadAttention(ParallelMultiheadAttentionOptions(4, 2).dropout(0.5), group)) ==
          "accelerate::nn::ParallelMultiheadAttention(embed_dim=4, num_heads=2, dropout=0.5, bias=true, ranks=2)");
    CHECK(printed(ParallelDropout(0.5, group)) == "accelerate::nn::ParallelDropout(p=0.5, ranks=2)");
    CHECK(printed(SequenceParallelLayerNorm(torch::nn::LayerNormOptions({4}), group)) ==
          "accelerate::nn::SequenceParallelLayerNorm([4], eps=1e-05, ranks=2)");
  });
}

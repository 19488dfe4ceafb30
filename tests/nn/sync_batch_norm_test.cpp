// SPDX-License-Identifier: Apache-2.0
#include "tests/nn/support.hpp"
//
#include "accelerate/nn/batch_moments.hpp"

using namespace nn_testing;
using torch::nn::BatchNorm1d;
using torch::nn::BatchNorm2d;
using torch::nn::BatchNorm3d;
using Options = torch::nn::BatchNormOptions;

namespace {

std::string at_rank(const Group& group, const std::string& text) {
  return accelerate::base::prefix(group.place()) + text;
}

at::Tensor list(const std::vector<double>& values) { return torch::tensor(values, at::kDouble); }

}  // namespace

TEST_CASE("ranks normalise like one process with the whole batch: 1d, 2d, 3d, every option, uneven and empty batches") {
  for (const int64_t ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    run_threads(
        ranks,
        [](const Group& group) {
          check_all_options<BatchNorm1d>(group, {});
          check_all_options<BatchNorm1d>(group, {5});
          check_all_options<BatchNorm2d>(group, {4, 3});
          check_all_options<BatchNorm3d>(group, {2, 3, 2});
          check_like_one_process<BatchNorm2d>(group, {.inner = {4, 3}, .format = at::MemoryFormat::ChannelsLast});
        },
        kTimeout);
  }
}

// y[3], x.grad[0], weight.grad, bias.grad, running statistics of PyTorch 2.11's BatchNorm1d(3).double() in Python:
// x = 2 sin(n) + 1, gradient cos(n), n = 0 .. 23 as [4, 3, 2].
TEST_CASE("two ranks have the numbers of Python's BatchNorm on the whole batch") {
  run_threads(
      2,
      [](const Group& group) {
        BatchNorm1d stock(3);
        stock->to(at::kDouble);
        {
          const torch::NoGradGuard no_grad;
          stock->weight.copy_(list({0.5, 1, 1.5}));
          stock->bias.copy_(list({-1, 0, 1}));
        }
        SyncBatchNorm layer = twin_of(stock, group);
        const at::Tensor n = torch::arange(24, at::kDouble).view({4, 3, 2});
        const int64_t first = group.rank() == 0 ? 0 : 1;  // one sample on rank 0, three on rank 1
        const auto part = [&](const at::Tensor& whole) { return whole.narrow(0, first, group.rank() == 0 ? 1 : 3); };
        const at::Tensor x = part(n.sin() * 2 + 1).clone().requires_grad_(true);
        const at::Tensor y = layer(x);
        (y * part(n.cos())).sum().backward();
        const at::Tensor sums = torch::stack({layer->weight.grad(), layer->bias.grad()});
        group.all_reduce(sums);
        if (group.rank() == 0)
          CHECK(close(x.grad()[0].flatten(), list({0.0774484658525103, -0.11235805420850535, -0.4290429477967713,
                                                   0.3215872908004039, -0.5555425571730475, 1.0394297915505843})));
        if (group.rank() == 1)
          CHECK(close(y[2].flatten(), list({-1.7693253938534026, -0.9175659906010561, 0.6328436819944461,
                                            0.36851117517408455, 3.9348895387745304, 0.22063078306941783})));
        CHECK(close(sums[0], list({-0.2926053937698414, 3.027107948925895, -2.919791590022105})));
        CHECK(close(sums[1], list({6.654696913475248, -3.2253675219027422, -3.9702439315918037})));
        CHECK(close(layer->running_mean, list({0.11253815417613106, 0.24605975629665894, -0.03410276523553341})));
        CHECK(close(layer->running_var, list({1.027841864327529, 0.9380775124452396, 0.9522774634415674})));
      },
      kTimeout);
}

TEST_CASE("half and bfloat16 batches are summed in float32 and keep their dtype") {
  run_threads(
      2,
      [](const Group& group) {
        for (const auto dtype : {at::kHalf, at::kBFloat16}) {
          CAPTURE(dtype);
          SyncBatchNorm layer(Options(2).momentum(1.0), group.duplicate());
          const at::Tensor whole = (numbers({4000, 2}, 7) + 60).to(dtype);
          const at::Tensor mine = whole.chunk(2)[group.rank()].clone().requires_grad_(true);
          const at::Tensor y = layer(mine);
          (y.to(at::kFloat) * 0.5).sum().backward();
          CHECK((y.scalar_type() == dtype));
          CHECK((mine.grad().scalar_type() == dtype));
          CHECK((layer->running_mean.scalar_type() == at::kFloat));
          const at::Tensor exact = whole.to(at::kDouble);
          CHECK(close(layer->running_mean.to(at::kDouble), exact.mean(0), 1e-6));
          CHECK(close(layer->running_var.to(at::kDouble), exact.var(0), 1e-5));
          const at::Tensor expected = (exact - exact.mean(0)) / (exact.var(0, false) + 1e-5).sqrt();
          CHECK(torch::allclose(y.to(at::kDouble), expected.chunk(2)[group.rank()], 0, 0.02));
        }
      },
      kTimeout);
}

TEST_CASE("a mean that is large relative to the deviation loses no digits") {
  const at::Tensor far_from_zero = numbers({6, 2}, 1, at::kFloat) + 1e4;
  const auto rows = far_from_zero.split_with_sizes({1, 5});
  const auto whole =
      accelerate::nn::combine(torch::stack({accelerate::nn::moments_of(rows[0]), accelerate::nn::moments_of(rows[1])}));
  const at::Tensor exact = far_from_zero.to(at::kDouble);
  CHECK(close(whole.unbiased.to(at::kDouble), exact.var(0), 0.02));  // sums of squares would lose all digits
  CHECK(whole.values.item<double>() == 6);
}

TEST_CASE("a rank with an empty batch joins and has the same statistics") {
  run_threads(
      3,
      [](const Group& group) {
        SyncBatchNorm layer(2, group.duplicate());
        const at::Tensor x = numbers({group.rank() == 1 ? 0 : 3, 2, 4}, group.rank(), at::kFloat).requires_grad_(true);
        layer(x).pow(3).sum().backward();
        CHECK(x.grad().sizes() == x.sizes());
        CHECK_FALSE(layer->running_mean.isnan().any().item<bool>());
        CHECK(bit_equal(group, {layer->running_mean, layer->running_var}));
        if (group.rank() == 1) CHECK(layer->weight.grad().eq(0).all().item<bool>());
      },
      kTimeout);
}

TEST_CASE("a training step of a layer is one collective in forward and one in backward, an evaluation is none") {
  run_threads(
      2,
      [](const Group& group) {
        const Group own = group.duplicate();
        SyncBatchNorm layer(2, own);
        const at::Tensor x = numbers({3, 2}, group.rank(), at::kFloat).requires_grad_(true);
        at::Tensor y;
        CHECK(operations_in(own, [&] { y = layer(x); }) == 1);
        CHECK(operations_in(own, [&] { y.sum().backward(); }) == 1);
        // As in PyTorch: the other ranks' sums are not needed if the input requires no gradient.
        CHECK(operations_in(own, [&] { layer(x.detach()).sum().backward(); }) == 1);
        layer->eval();
        CHECK(operations_in(own, [&] { layer(x).sum().backward(); }) == 0);
      },
      kTimeout);
}

TEST_CASE("without a group it equals the stock layer, second derivatives included") {
  BatchNorm1d stock = stock_layer<BatchNorm1d>(Options(3));
  SyncBatchNorm layer(accelerate::nn::synchronised(*stock));
  CHECK_FALSE(layer->connected());
  const at::Tensor x = numbers({5, 3}, 1).requires_grad_(true);
  const at::Tensor ours = torch::autograd::grad({layer(x).pow(3).sum()}, {x}, {}, true, true)[0];
  const at::Tensor theirs = torch::autograd::grad({stock(x).pow(3).sum()}, {x}, {}, true, true)[0];
  CHECK(torch::equal(torch::autograd::grad({ours.pow(2).sum()}, {x})[0],
                     torch::autograd::grad({theirs.pow(2).sum()}, {x})[0]));
  CHECK_THROWS_WITH_AS(layer(x.detach()[0].unsqueeze(0)), doctest::Contains("Expected more than 1 value per channel"),
                       c10::Error);
}

TEST_CASE("second derivatives over several ranks are refused only if they are computed") {
  run_threads(
      2,
      [](const Group& group) {
        SyncBatchNorm layer(2, group.duplicate());
        const at::Tensor x = numbers({3, 2}, group.rank(), at::kFloat).requires_grad_(true);
        const at::Tensor first = torch::autograd::grad({layer(x).pow(3).sum()}, {x}, {}, true, true)[0];
        CHECK_THROWS_WITH_AS(
            first.sum().backward(),
            doctest::Contains("SyncBatchNorm over several ranks is differentiated once only; for second "
                              "derivatives take it out, or run them on one rank"),
            c10::Error);
      },
      kTimeout);
}

TEST_CASE("invalid inputs are refused with both values, and too few values on every rank") {
  run_threads(
      2,
      [](const Group& group) {
        SyncBatchNorm layer(3, group.duplicate());
        CHECK_THROWS_WITH_AS(
            layer(torch::ones({3})),
            at_rank(group,
                    "sync_batch_norm: the input is [3], must have a batch and a channel dimension, [N, "
                    "3, ...]")
                .c_str(),
            accelerate::Error);
        CHECK_THROWS_WITH_AS(
            layer(torch::ones({2, 4, 5})),
            at_rank(group, "sync_batch_norm: the input is [2, 4, 5] with 4 channels, num_features is 3").c_str(),
            accelerate::Error);
        for (const int64_t rows : {0, 1}) {
          CHECK_THROWS_WITH_AS(
              layer(torch::ones({group.rank() == 0 ? rows : 0, 3})),
              at_rank(group, fmt::format("sync_batch_norm: the batches of all 2 ranks together have {} "
                                         "values per channel, training needs at least 2",
                                         rows))
                  .c_str(),
              accelerate::Error);
        }
        CHECK(layer->running_mean.eq(0).all().item<bool>());
        CHECK(layer(torch::ones({1, 3})).sizes() == at::IntArrayRef({1, 3}));  // two ranks have two values
      },
      kTimeout);
}

TEST_CASE("a clone, another dtype and a saved state work as with the stock layers") {
  SyncBatchNorm layer(Options(2).eps(1e-4));
  layer->to(at::kDouble);
  layer(numbers({4, 2}, 1));
  SyncBatchNorm copy(std::dynamic_pointer_cast<SyncBatchNormImpl>(layer->clone()));
  CHECK(torch::equal(copy->running_mean, layer->running_mean));
  CHECK_FALSE(copy->weight.is_same(layer->weight));
  CHECK(copy->options.eps() == 1e-4);
  std::stringstream file;
  torch::save(layer, file);
  BatchNorm1d stock(Options(2).eps(1e-4));
  stock->to(at::kDouble);
  torch::load(stock, file);
  CHECK(torch::equal(stock->running_var, layer->running_var));
  std::ostringstream text;
  text << *layer;
  CHECK(text.str() ==
        "accelerate::nn::SyncBatchNorm(2, eps=0.0001, momentum=0.1, affine=true, track_running_stats=true, ranks=1)");
}

TEST_CASE("reductions of small buckets do not conflict with collectives of backward") {
  for (const int64_t ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    run_threads(
        ranks, [](const Group& group) { check_trains_like_one_process(group, false); }, kTimeout);
  }
}

TEST_CASE("checkpointed layers train like one process, and count each batch once") {
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    run_threads(
        ranks, [](const Group& group) { check_trains_like_one_process(group, true); }, kTimeout);
  }
}

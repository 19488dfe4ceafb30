// SPDX-License-Identifier: Apache-2.0
// The core cases between processes, on every CPU backend.
#include "accelerate/accelerate.hpp"
#include "tests/nn/linear_cross_entropy.hpp"
#include "tests/nn/support.hpp"
#include "tests/world.hpp"

using namespace nn_testing;

namespace {

/// Its last layer is the embedding's weight.
struct TiedToLossImpl : torch::nn::Module {
  TiedToLossImpl() { to(at::kDouble); }
  at::Tensor forward(const at::Tensor& tokens) { return torch::tanh(inner(token(tokens))); }
  torch::nn::Embedding token = register_module("token", torch::nn::Embedding(11, 6));
  torch::nn::Linear inner = register_module("inner", torch::nn::Linear(6, 6));
};
TORCH_MODULE(TiedToLoss);

}  // namespace

TEST_CASE("ranks normalise like one process with the whole batch") {
  check_all_options<torch::nn::BatchNorm1d>(testing::world(), {});
  check_all_options<torch::nn::BatchNorm2d>(testing::world(), {4, 3});
  check_all_options<torch::nn::BatchNorm3d>(testing::world(), {2, 3, 2});
}

TEST_CASE("reductions of small buckets do not conflict with collectives of backward") {
  for (int round = 0; round < 5; ++round) check_trains_like_one_process(testing::world(), false);
}

TEST_CASE("checkpointed layers train like one process") { check_trains_like_one_process(testing::world(), true); }

TEST_CASE("a checkpointed model is reduced in as many operations as a plain one, to the same bits; dropout too") {
  const Group& group = testing::world();
  const auto train = [&](bool checkpointed, bool plainly) {
    auto net = gradient_testing::built(gradient_testing::make_net);
    const auto own = group.duplicate();
    gradient_testing::GradientReducer gradient_reducer(own, gradient_testing::named(net),
                                                       gradient_testing::small_buckets());
    const std::vector<gradient_testing::GradientReducer*> engines{&gradient_reducer};
    const auto part = [&](const at::Tensor& x) { return torch::dropout(net->with_extra(x), 0.5, true); };
    torch::manual_seed(static_cast<uint64_t>(5 + group.rank()));
    int64_t made = 0;
    for (int64_t round = 0; round < 3; ++round) {
      gradient_reducer.zero_all();
      const at::Tensor x = gradient_testing::batch(group.rank(), round);
      const auto run = [&] {
        const at::Tensor y = checkpointed ? accelerate::nn::checkpoint(part, x) : part(x);
        const at::Tensor z = checkpointed ? accelerate::nn::checkpoint(part, x * 2) : part(x * 2);
        (y * z).sum().backward();
      };
      made += operations_in(own, [&] {
        if (plainly) return run();
        run_backward(engines, group, run);
      });
    }
    return std::pair(made, gradient_testing::gradients_of(net->parameters()));
  };
  const auto expected = train(false, true);
  for (const bool plainly : {true, false}) {
    const auto seen = train(true, plainly);
    CHECK(seen.first == expected.first);
    CHECK(gradient_testing::same(seen.second, expected.second));
    CHECK(bit_equal(group, seen.second));
  }
}

TEST_CASE("a model with a tied embedding and linear_cross_entropy trains like one process with cross_entropy") {
  accelerate::Accelerator accelerator(testing::world(), {.cpu = true});
  const int64_t ranks = accelerator.num_processes(), rows = 3;
  auto net = gradient_testing::built([] { return TiedToLoss(); });
  auto alone = gradient_testing::built([] { return TiedToLoss(); });
  torch::optim::SGD sgd(net->parameters(), 0.5), alone_sgd(alone->parameters(), 0.5);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int64_t step = 0; step < 4; ++step) {
    CAPTURE(step);
    const at::Tensor tokens = (numbers({ranks * rows, 5}, step).abs() * 1000).to(at::kLong).remainder(11);
    const at::Tensor next = tokens.roll(1, 1), mine = tokens.narrow(0, rows * accelerator.process_index(), rows);
    optimizer.zero_grad();
    const at::Tensor hidden = model(mine);
    accelerator.backward(linear_cross_entropy(hidden, net->token->weight, mine.roll(1, 1), {.max_bytes = 300}));
    optimizer.step();
    alone_sgd.zero_grad();
    stock_loss(alone(tokens), alone->token->weight, next, {}).backward();
    alone_sgd.step();
    const auto expected = alone->named_parameters();
    for (const auto& item : net->named_parameters()) CHECK(close(item.value(), expected[item.key()]));
  }
}

TEST_CASE("a parameter that differs on one rank is reported to every rank") {
  const Group& group = testing::world();
  const at::Tensor weight = torch::ones({3});
  CHECK_NOTHROW(accelerate::nn::check_synchronized(group, {{"parameter w", weight}}));
  if (group.size() == 1) return;
  if (group.rank() == 1) weight[2].neg_();
  std::string others = group.size() == 2 ? "rank 0" : "ranks 0";
  for (int64_t rank = 2; rank < group.size(); ++rank) others += ", " + std::to_string(rank);
  const std::string difference = "has one value on " + others + ", another on rank 1";
  CHECK_THROWS_WITH_AS(accelerate::nn::check_synchronized(group, {{"parameter w", weight}}),
                       doctest::Contains(difference.c_str()), accelerate::Error);
}

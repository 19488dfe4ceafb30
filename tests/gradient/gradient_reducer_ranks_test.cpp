// SPDX-License-Identifier: Apache-2.0
// The core cases between processes, on every CPU backend.
#include "accelerate/gradient/coalesced.hpp"
#include "accelerate/gradient/uneven_join.hpp"
#include "accelerate/gradient/verify_parameters.hpp"
#include "equivalence.hpp"
#include "tests/world.hpp"

using namespace gradient_testing;
using accelerate::gradient::run_backward;
using accelerate::gradient::UnevenJoin;

namespace {

// Three rounds of backward(net, rank) against the mean of the ranks' own gradients, and equal bits.
template <typename Make, typename Backward>
void check_on(const Group& group, const Make& make, const Backward& backward) {
  const Grads expected = truth(group.size(), make, backward);
  auto net = built(make);
  GradientReducer gradient_reducer(group.duplicate(), named(net), small_buckets());
  const std::vector<GradientReducer*> gradient_reducers{&gradient_reducer};
  for (int round = 0; round < 3; ++round) {
    gradient_reducer.zero_all();
    run_backward(gradient_reducers, group, [&] { backward(net, group.rank()); });
    CHECK(same(gradients_of(net->parameters()), expected));
    CHECK(bit_equal(group, gradients_of(net->parameters())));
  }
}

}  // namespace

TEST_CASE("ranks with batch B train like one with batch N*B: SGD, momentum, AdamW, within 1e-12 over 50 steps") {
  const Group& group = testing::world();
  check_equivalence(group.duplicate(), sgd);
  check_equivalence(group.duplicate(), momentum);
  check_equivalence(group.duplicate(), adamw);
}

TEST_CASE("gradients are the mean, also if one rank omits parameters or the whole model") {
  const Group& group = testing::world();
  check_on(group, make_net, [](const NetPtr& net, int64_t rank) { net->with_extra(batch(rank)).sum().backward(); });
  check_on(group, make_net, [](const NetPtr& net, int64_t rank) {
    (rank == 0 ? net->with_extra(batch(rank)) : net->forward(batch(rank))).pow(2).sum().backward();
  });
  check_on(group, make_net, [](const NetPtr& net, int64_t rank) { net->forward(batch(rank)).sum().backward(); });
  if (group.size() > 1) {
    check_on(group, make_net, [](const NetPtr& net, int64_t rank) {
      if (rank == 0) net->with_extra(batch(rank)).sum().backward();
    });
  }
}

TEST_CASE("sparse gradients of different lengths stay sparse and are the mean") {
  const auto make = [] {
    auto words = std::make_shared<torch::nn::EmbeddingImpl>(torch::nn::EmbeddingOptions(9, 3).sparse(true));
    words->to(torch::kDouble);
    return words;
  };
  check_on(testing::world(), make, [](const std::shared_ptr<torch::nn::EmbeddingImpl>& words, int64_t rank) {
    words->forward(torch::arange(rank, 2 * rank + 1)).pow(2).sum().backward();
  });
}

TEST_CASE("bfloat16 and float32 parameters are averaged in their own dtypes") {
  const Group& group = testing::world();
  const at::Tensor half = torch::ones({5}, torch::dtype(at::kBFloat16).requires_grad(true));
  const at::Tensor full = torch::ones({3}, torch::dtype(at::kFloat).requires_grad(true));
  GradientReducer gradient_reducer(group.duplicate(), {{"half", half}, {"full", full}});
  for (int round = 0; round < 3; ++round) {
    gradient_reducer.zero_all();
    const auto factor = static_cast<double>(group.rank() + 1);
    ((half * factor).sum().to(at::kFloat) + (full * factor).sum()).backward();
    const double mean = (static_cast<double>(group.size()) + 1) / 2;
    CHECK(half.grad().eq(mean).all().item<bool>());
    CHECK(full.grad().eq(mean).all().item<bool>());
  }
}

TEST_CASE("no_sync leaves gradients local, and the next synchronised backward reduces them") {
  const Group& group = testing::world();
  auto net = built(make_net);
  GradientReducer gradient_reducer(group.duplicate(), named(net), small_buckets());
  for (int window = 0; window < 2; ++window) {
    gradient_reducer.zero_all();
    gradient_reducer.set_sync(false);
    net->with_extra(batch(group.rank(), 0)).pow(2).sum().backward();
    CHECK(bit_equal(group, {net->first->weight.grad()}) == (group.size() == 1));
    gradient_reducer.set_sync(true);
    net->with_extra(batch(group.rank(), 1)).pow(2).sum().backward();
    CHECK(bit_equal(group, gradients_of(net->parameters())));
  }
}

TEST_CASE("ranks with different numbers of batches end equal") {
  const Group& group = testing::world();
  auto net = built(make_net);
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  GradientReducer gradient_reducer(group.duplicate(), named(net), small_buckets());
  {
    const UnevenJoin join(group.duplicate(), {{&gradient_reducer}});
    for (int64_t step = 0; step < 2 + group.rank(); ++step) {
      gradient_reducer.zero_all();
      net->forward(batch(group.rank(), step)).pow(2).sum().backward();
      gradient_reducer.before_step();
      optimizer.step();
    }
  }
  CHECK(bit_equal(group, net->parameters()));
}

TEST_CASE("buffers are rank 0's, and parameters are averaged") {
  const Group& group = testing::world();
  const auto mine = static_cast<double>(group.rank());
  const at::Tensor mean = torch::full({4}, mine, at::kFloat);
  const at::Tensor count = torch::full({}, mine, at::kLong);
  accelerate::gradient::BufferBroadcast broadcast(group, {{"mean", mean}, {"count", count}});
  broadcast.run();
  CHECK(mean.eq(0).all().item<bool>());
  CHECK(count.item<int64_t>() == 0);
  const at::Tensor weight = torch::full({7}, mine, at::kDouble);
  accelerate::gradient::average_parameters(group, {weight});
  CHECK(weight.eq((static_cast<double>(group.size()) - 1) / 2).all().item<bool>());
}

TEST_CASE("different models are reported on every rank") {
  const Group& group = testing::world();
  if (group.size() == 1) return;
  const std::vector<NamedTensor> parameters{{"weight", torch::zeros({group.rank() == 1 ? 3 : 2})}};
  CHECK_THROWS_WITH_AS(accelerate::gradient::verify_parameters(group, "parameter", parameters),
                       (accelerate::base::prefix(group.place()) +
                        "prepare: parameter 0 of the model is weight [2] Float, frozen on rank 0, weight [3] Float, "
                        "frozen on rank 1; build the same model on every rank")
                           .c_str(),
                       accelerate::Error);
}

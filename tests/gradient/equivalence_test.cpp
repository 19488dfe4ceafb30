// SPDX-License-Identifier: Apache-2.0
#include "equivalence.hpp"

using namespace gradient_testing;
using accelerate::comm::run_threads;

TEST_CASE("N ranks with batch B train like one rank with batch N*B: SGD, momentum, AdamW, within 1e-12 over 50 steps") {
  for (const int64_t ranks : {2, 4}) {
    run_threads(
        ranks, [](const Group& group) { check_equivalence(group, sgd); }, kTimeout);
    run_threads(
        ranks, [](const Group& group) { check_equivalence(group, momentum); }, kTimeout);
    run_threads(
        ranks, [](const Group& group) { check_equivalence(group, adamw); }, kTimeout);
  }
}

TEST_CASE("a window of k micro-batches trains like one batch") {
  const Grads expected = truth(2, make_net, [](const NetPtr& net, int64_t rank) {
    at::Tensor loss = torch::zeros({}, at::kDouble);
    for (int64_t micro = 0; micro < 3; ++micro) loss = loss + net->with_extra(batch(rank, micro)).pow(2).mean() / 3.0;
    loss.backward();
  });
  run_threads(2, [&](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    for (int repeat = 0; repeat < 3; ++repeat) {
      gradient_reducer.zero_all();
      for (int64_t micro = 0; micro < 3; ++micro) {
        gradient_reducer.set_sync(micro == 2);
        (net->with_extra(batch(group.rank(), micro)).pow(2).mean() / 3.0).backward();
      }
      CHECK(same(gradients_of(net->parameters()), expected));
    }
  });
}

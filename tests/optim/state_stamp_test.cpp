// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <ATen/core/grad_mode.h>

#include "accelerate/optim/state_stamp.hpp"

using accelerate::optim::state_stamp;
using Parameters = std::vector<at::Tensor>;

namespace {

Parameters two_with_gradients() {
  Parameters all;
  for (int i = 0; i < 2; ++i) {
    all.push_back(torch::ones({3}, torch::requires_grad()));
    all.back().mutable_grad() = torch::ones({3});
  }
  return all;
}

template <typename Optimizer, typename Options>
void changes_with_each_step(const Options& options) {
  const Parameters all = two_with_gradients();
  Optimizer optimizer(all, options);
  uint64_t before = state_stamp(optimizer, all[0]);
  for (int i = 0; i < 3; ++i) {
    {
      const at::NoGradGuard no_grad;
      all[0].clamp_(-0.1, 0.1);
    }
    CHECK(state_stamp(optimizer, all[0]) == before);
    optimizer.step();
    CHECK(state_stamp(optimizer, all[0]) != before);
    before = state_stamp(optimizer, all[0]);
  }
  all[0].mutable_grad().reset();
  optimizer.step();  // on the other parameter alone
  CHECK(state_stamp(optimizer, all[0]) == before);
}

}  // namespace

TEST_CASE("an optimizer's state changes with its steps on a parameter only") {
  using namespace torch::optim;
  changes_with_each_step<SGD>(SGDOptions(0.1).momentum(0.9));
  changes_with_each_step<Adam>(AdamOptions(0.1));
  changes_with_each_step<AdamW>(AdamWOptions(0.1).amsgrad(true));
  changes_with_each_step<RMSprop>(RMSpropOptions(0.1));
  changes_with_each_step<Adagrad>(AdagradOptions(0.1));
}

TEST_CASE("SGD without momentum, and unknown optimizers, have no state that shows a step") {
  const Parameters all = two_with_gradients();
  torch::optim::SGD sgd(all, 0.1);
  sgd.step();
  CHECK(state_stamp(sgd, all[0]) == 0);
  torch::optim::LBFGS other(all);
  other.step([&] { return all[0].sum(); });
  CHECK(state_stamp(other, all[0]) == 0);
}

// SPDX-License-Identifier: Apache-2.0
// module->to(dtype) after the reducer was created: LibTorch gives the parameters new gradient accumulators.
#include "accelerate/base/error.hpp"
#include "support.hpp"

using namespace gradient_testing;
using accelerate::comm::run_threads;
using accelerate::gradient::run_backward;

namespace {

void loss_backward(const NetPtr& net, int64_t rank) {
  net->with_extra(batch(rank).to(net->first->weight.scalar_type())).pow(2).sum().backward();
}

enum class Noticed { at_forward, by_run_backward, at_join };

}  // namespace

TEST_CASE("parameters are averaged in buckets of their new dtype, before and after the first step") {
  const Grads expected = truth(2, make_net, loss_backward);
  for (const int steps_before : {0, 2}) {
    for (const Noticed noticed : {Noticed::at_forward, Noticed::by_run_backward, Noticed::at_join}) {
      run_threads(2, [&](const Group& group) {
        auto net = built(make_net);
        GradientReducer gradient_reducer(group, named(net), small_buckets());
        const std::vector<GradientReducer*> gradient_reducers{&gradient_reducer};
        for (int i = 0; i < steps_before; ++i) loss_backward(net, group.rank());
        for (const auto dtype : {at::kFloat, at::kDouble, at::kFloat}) {
          net->zero_grad();
          net->to(dtype);
          if (noticed == Noticed::at_join && group.rank() == 1) {
            gradient_reducer.join_backward();
            continue;
          }
          if (noticed != Noticed::by_run_backward) gradient_reducer.forward(true);
          const auto call = [&] { loss_backward(net, group.rank()); };
          noticed == Noticed::by_run_backward ? run_backward(gradient_reducers, group, call) : call();
          if (noticed == Noticed::at_join) continue;
          CHECK(same(gradients_of(net->parameters()), expected, dtype == at::kFloat ? 1e-4 : 1e-13));
          CHECK(bit_equal(group, gradients_of(net->parameters())));
          gradient_reducer.before_step();
          CHECK(gradient_reducer.plan().buckets.front().key == (dtype == at::kFloat ? "Float cpu" : "Double cpu"));
        }
        CHECK(bit_equal(group, gradients_of(net->parameters())));
      });
    }
  }
}

TEST_CASE("a change of dtype and back resets the hooks too") {
  const Grads expected = truth(2, make_net, loss_backward);
  run_threads(2, [&](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    loss_backward(net, group.rank());
    gradient_reducer.zero_all();
    net->to(at::kFloat);
    net->to(at::kDouble);
    gradient_reducer.forward(true);
    loss_backward(net, group.rank());
    CHECK(same(gradients_of(net->parameters()), expected, 1e-4));
    CHECK(bit_equal(group, gradients_of(net->parameters())));
  });
}

TEST_CASE("gradients follow their parameters to a new dtype: reduced ones step, local ones are reduced later") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    loss_backward(net, group.rank());
    const Grads before = gradients_of(net->parameters());
    net->to(at::kFloat);
    gradient_reducer.before_step();
    CHECK((net->first->weight.grad().scalar_type() == at::kFloat));
    CHECK(same(gradients_of(net->parameters()), before, 1e-4));
    gradient_reducer.zero_all();
    gradient_reducer.set_sync(false);
    loss_backward(net, group.rank());
    net->to(at::kDouble);
    CHECK_THROWS_AS(gradient_reducer.before_step(), accelerate::Error);
    gradient_reducer.set_sync(true);
    loss_backward(net, group.rank());
    for (size_t i = 0; i < before.size(); ++i)
      CHECK(torch::allclose(net->parameters()[i].grad(), before[i] * 2, 0, 1e-4));
    CHECK(bit_equal(group, gradients_of(net->parameters())));
  });
}

TEST_CASE("a step after a backward without hooks, because the parameters changed, is refused") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    loss_backward(net, group.rank());
    gradient_reducer.zero_all();
    net->to(at::kFloat);
    loss_backward(net, group.rank());
    CHECK_THROWS_WITH(gradient_reducer.before_step(), doctest::Contains("is this rank's own, not the mean of 2 ranks"));
  });
}

TEST_CASE("a parameter that is frozen during a dtype change is hooked once it is unfrozen") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    loss_backward(net, group.rank());
    gradient_reducer.zero_all();
    net->second->weight.requires_grad_(false);
    net->to(at::kFloat);
    gradient_reducer.forward(true);
    loss_backward(net, group.rank());
    CHECK_FALSE(net->second->weight.grad().defined());
    gradient_reducer.zero_all();
    net->second->weight.requires_grad_(true);
    gradient_reducer.forward(true);
    loss_backward(net, group.rank());
    CHECK(bit_equal(group, gradients_of(net->parameters())));
    gradient_reducer.before_step();
  });
}

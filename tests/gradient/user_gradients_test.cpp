// SPDX-License-Identifier: Apache-2.0
// Local gradients that did not pass through a backward of the reducer: assigned gradients, steps that skip a window, a
// graph of gradients; and the messages if peers do not join.
#include "accelerate/base/error.hpp"
#include "accelerate/base/log.hpp"
#include "support.hpp"

using namespace gradient_testing;
using accelerate::Error;
using accelerate::comm::run_threads;
using accelerate::gradient::run_backward;

namespace {

void use(const NetPtr& net, int64_t rank) { net->with_extra(batch(rank)).pow(2).sum().backward(); }

// Throws at the end of a backward, when every parameter has its gradient.
struct LateBomb : torch::autograd::Function<LateBomb> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw std::runtime_error("bomb");
  }
};

}  // namespace

TEST_CASE("a gradient that user code assigned is used only after a reduction, with and without clipping") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    const auto assign = [&] {
      const at::Tensor loss = net->with_extra(batch(group.rank())).sum();
      net->second->bias.mutable_grad() =
          torch::autograd::grad({loss}, {net->second->bias})[0] * static_cast<double>(group.rank() + 1);
    };
    for (int round = 0; round < 2; ++round) {
      for (const bool clips : {false, true}) {
        assign();
        if (clips) (void)gradient_reducer.gradients();
        CHECK(gradient_reducer.first_unreduced());
        const std::string text = text_of([&] { gradient_reducer.before_step(); });
        if (!clips) {
          CHECK(text ==
                "optimizer.step: the gradient of parameter second.bias was assigned after the last reduction, so it is "
                "this rank's own, not the mean of 2 ranks; assign before a synchronised backward, which averages it "
                "too, and change reduced gradients in place (grad.mul_(), grad.copy_())");
        } else {
          CHECK(text != "no error");
        }
      }
      use(net, group.rank());
      CHECK_FALSE(gradient_reducer.first_unreduced());
      net->second->bias.mutable_grad().mul_(0.5);
      gradient_reducer.before_step();
      gradient_reducer.zero_all();
    }
  });
}

TEST_CASE("a reduced sparse gradient is recognised, a replacement is not") {
  run_threads(2, [](const Group& group) {
    auto net = built([] {
      auto table = torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 3).sparse(true));
      table->weight.mutable_grad().reset();
      return table;
    });
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    for (int round = 0; round < 2; ++round) {
      net(torch::tensor({1 + group.rank()})).sum().backward();
      gradient_reducer.before_step();
      (void)gradient_reducer.gradients();
      gradient_reducer.before_step();
      net->weight.mutable_grad() = net->weight.grad() * 2;
      CHECK(gradient_reducer.first_unreduced());
      gradient_reducer.zero_all();
    }
  });
}

TEST_CASE("a step within a window is reported at the next backward, also through data() as in SGD") {
  enum class StateAccessor { sgd, adam, sgd_and_zero, none, after_zeroing };
  for (const StateAccessor way : {StateAccessor::sgd, StateAccessor::adam, StateAccessor::sgd_and_zero,
                                  StateAccessor::none, StateAccessor::after_zeroing}) {
    CAPTURE(static_cast<int>(way));
    run_threads(2, [&](const Group& group) {
      auto net = built(make_net);
      torch::optim::SGD sgd(net->parameters(), 0.1);
      torch::optim::Adam adam(net->parameters(), 0.1);
      GradientReducer gradient_reducer(group, named(net), small_buckets());
      const std::vector<GradientReducer*> gradient_reducers{&gradient_reducer};
      gradient_reducer.open_window(false);
      run_backward(gradient_reducers, group, [&] { use(net, group.rank()); });
      if (way == StateAccessor::after_zeroing) gradient_reducer.zero_all();
      if (way == StateAccessor::adam) {
        adam.step();
      } else if (way != StateAccessor::none) {
        sgd.step();
      }
      if (way == StateAccessor::sgd_and_zero) sgd.zero_grad();
      gradient_reducer.close_window();
      gradient_reducer.open_window(true);
      const std::string text =
          text_of([&] { run_backward(gradient_reducers, group, [&] { use(net, group.rank()); }); });
      gradient_reducer.close_window();
      if (way == StateAccessor::none || way == StateAccessor::after_zeroing) {
        CHECK(text == "no error");
      } else {
        CHECK(text.find("backward: parameter ") == 0);
        CHECK(text.find(
                  " changed within an accumulation window, while its gradient was this rank's own, not the mean of 2 "
                  "ranks: an optimizer stepped that was not prepared, or the one behind a prepared optimizer; step "
                  "what prepare() returned, or step where sync_gradients() is true") != std::string::npos);
      }
    });
  }
}

TEST_CASE("zero() with a parameter listed twice keeps the other gradients") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    use(net, group.rank());
    std::vector<at::Tensor> list(net->parameters().size(), net->first->weight);
    gradient_reducer.zero(list);
    CHECK_FALSE(net->first->weight.grad().defined());
    CHECK(net->second->weight.grad().defined());
  });
}

TEST_CASE("create_graph on averaged gradients is reported once, because their graph does not span ranks") {
  std::mutex mutex;
  std::vector<std::string> lines;
  auto previous = accelerate::base::set_log_handler([&](auto, std::string_view line) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(line);
  });
  std::string expected;
  run_threads(2, [&](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    for (int step = 0; step < 2; ++step) {
      const auto loss = net->with_extra(batch(group.rank())).pow(2).sum();
      loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true);
      gradient_reducer.zero_all();
    }
    if (group.rank() == 0) expected = accelerate::base::prefix(group.place());
  });
  accelerate::base::set_log_handler(std::move(previous));
  REQUIRE(lines.size() == 2);
  const auto was_logged = [&](const std::string& line) {
    return line.find("backward: create_graph is set; the gradient of parameter ") != std::string::npos &&
           line.find(
               " is averaged over the 2 ranks, its graph is not: derivatives through it have no effect. Take higher "
               "derivatives with torch::autograd::grad(), and only the last backward through "
               "the model") != std::string::npos;
  };
  CHECK(was_logged(lines[0]));
  CHECK(was_logged(lines[1]));
}

TEST_CASE("zeroing completes the reduction of a backward that threw late, so the peer continues") {
  const Grads expected = truth(2, make_net, use);
  run_threads(2, [&](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    const std::vector<GradientReducer*> gradient_reducers{&gradient_reducer};
    const auto step = [&](bool explodes) {
      at::Tensor x = batch(group.rank()).clone();
      if (explodes) x = LateBomb::apply(x.requires_grad_());
      run_backward(gradient_reducers, group, [&] { net->with_extra(x).pow(2).sum().backward(); });
    };
    step(false);
    for (int round = 0; round < 2; ++round) {
      gradient_reducer.zero_all();
      if (group.rank() == 1) {
        CHECK_THROWS_WITH(step(true), "bomb");
      } else {
        step(false);
      }
      gradient_reducer.zero_all();
      step(false);
      CHECK(same(gradients_of(net->parameters()), expected));
    }
  });
}

TEST_CASE("a missing rank is reported under the user's call with the model's parameters") {
  std::atomic<int> failures = 0;
  try {
    run_threads(
        2,
        [&](const Group& group) {
          auto net = built(make_net);
          GradientReducer gradient_reducer(group, named(net), small_buckets());
          if (group.rank() == 1) {
            while (failures == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
            return;
          }
          const std::string text = text_of([&] { use(net, 0); }, accelerate::ErrorKind::peer);
          ++failures;
          CHECK(text.find("backward: the gradients of the model (first.weight and 5 more) are not averaged: ") == 0);
          CHECK(text.find("rank 1 did not join") != std::string::npos);
        },
        std::chrono::milliseconds(300));
  } catch (const Error&) {
  }
  CHECK(failures == 1);
}

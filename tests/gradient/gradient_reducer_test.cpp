// SPDX-License-Identifier: Apache-2.0
// Definition of a reduced gradient: the mean of the ranks' accumulated gradients, for any shape of graph.
#include "accelerate/gradient/gradient_reducer.hpp"

#include "support.hpp"
//
#include <torch/script.h>

#include <cmath>
#include <limits>

#include "accelerate/gradient/clip.hpp"

using namespace gradient_testing;
using accelerate::comm::run_threads;
using accelerate::gradient::run_backward;

namespace {

void plain(const NetPtr& net, int64_t rank) { net->with_extra(batch(rank)).pow(2).sum().backward(); }

/// Norm of the whole buckets after a backward from zero gradients.
double clipped_norm(GradientReducer& gradient_reducer, const at::Tensor& loss) {
  gradient_reducer.zero_all();
  loss.backward();
  return accelerate::gradient::clip_norm_of(gradient_reducer.gradients(), 1.0).item<double>();
}

struct Tied : torch::nn::Module {
  Tied() {
    inner = register_module("inner", torch::nn::Linear(4, 4));
    again = register_module("again", inner);  // listed twice by named_parameters
    to(torch::kDouble);
  }
  torch::nn::Linear inner{nullptr}, again{nullptr};
};

struct Mixed : torch::nn::Module {
  Mixed() {
    half = register_module("half", torch::nn::Linear(4, 6));
    full = register_module("full", torch::nn::Linear(6, 3));
    half->to(torch::kBFloat16);
  }
  at::Tensor forward(const at::Tensor& x) { return full(half(x.to(torch::kBFloat16)).to(torch::kFloat)); }
  torch::nn::Linear half{nullptr}, full{nullptr};
};

// Recomputes in backward, so that a backward inside the backward computes the weights' gradients.
struct Recompute : torch::autograd::Function<Recompute> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, NetImpl* net) {
    context->save_for_backward({x});
    context->saved_data["net"] = reinterpret_cast<int64_t>(net);
    return net->forward(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list outputs) {
    const at::AutoGradMode on(true);
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_(true);
    auto* net = reinterpret_cast<NetImpl*>(context->saved_data["net"].toInt());
    torch::autograd::backward({net->forward(x)}, {outputs[0]});
    return {x.grad(), at::Tensor()};
  }
};

}  // namespace

TEST_CASE("a backward computes the mean of the ranks' gradients, with the same bits on every rank") {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    check_means(ranks, make_net, plain);
  }
}

TEST_CASE("one bucket and one bucket per parameter produce the same gradients") {
  check_means(2, make_net, plain, {});
  check_means(2, make_net, plain, {.buckets = {.cap_bytes = 1, .first_cap_bytes = 1}});
}

TEST_CASE("buckets follow rank 0's order of arrival after the first reduction") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), {.buckets = {.cap_bytes = 1, .first_cap_bytes = 1}});
    CHECK(gradient_reducer.plan().buckets.empty());
    net->forward(batch(0)).sum().backward();
    // second, then first; extra never arrived and follows in reverse order of registration.
    std::vector<int64_t> order;
    for (const auto& bucket : gradient_reducer.plan().buckets) order.push_back(bucket.items.at(0));
    REQUIRE(order.size() == 6);
    CHECK(std::set<int64_t>(order.begin(), order.begin() + 2) == std::set<int64_t>{2, 3});
    CHECK(std::set<int64_t>(order.begin() + 2, order.begin() + 4) == std::set<int64_t>{0, 1});
    CHECK(std::vector<int64_t>(order.begin() + 4, order.end()) == std::vector<int64_t>{5, 4});
  });
}

TEST_CASE("reduced and pending gradients are views into the buckets") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net));
    plain(net, group.rank());
    const void* memory = net->first->weight.grad().data_ptr();
    for (const bool sync : {true, false}) {
      gradient_reducer.zero_all();
      CHECK_FALSE(net->first->weight.grad().defined());
      gradient_reducer.set_sync(sync);
      plain(net, group.rank());
      CHECK(net->first->weight.grad().data_ptr() == memory);
      CHECK(gradient_reducer.gradients().size() == 1);
    }
  });
}

TEST_CASE("weights that are used twice or listed twice are reduced once") {
  check_means(
      2, [] { return std::make_shared<Tied>(); },
      [](const std::shared_ptr<Tied>& net, int64_t rank) {
        net->again(torch::tanh(net->inner(batch(rank)))).pow(2).sum().backward();
      });
  run_threads(2, [](const Group& group) {
    auto net = built([] { return std::make_shared<Tied>(); });
    const auto& weight = net->inner->weight;
    GradientReducer gradient_reducer(group, {{"a", weight}, {"b", weight}});
    net->inner(batch(group.rank())).sum().backward();
    REQUIRE(gradient_reducer.plan().buckets.size() == 1);
    CHECK(gradient_reducer.plan().buckets[0].items.size() == 1);
    CHECK(bit_equal(group, {weight.grad()}));
  });
}

TEST_CASE("several forwards and one backward") {
  check_means(2, make_net, [](const NetPtr& net, int64_t rank) {
    const auto loss = net->forward(batch(rank, 0)).sum() + net->with_extra(batch(rank, 1)).pow(2).sum();
    (loss + net->forward(batch(rank, 2)).pow(2).sum()).backward();
  });
}

TEST_CASE("two backwards between zeroings are each reduced, and their sum is the mean of the sums") {
  check_means(2, make_net, [](const NetPtr& net, int64_t rank) {
    net->with_extra(batch(rank, 0)).pow(2).sum().backward();
    net->with_extra(batch(rank, 1)).pow(2).sum().backward();
  });
}

TEST_CASE("gradients accumulated without synchronisation are reduced with the next synchronised backward") {
  const auto window = [](const NetPtr& net, int64_t rank) {
    for (int64_t round = 0; round < 3; ++round) net->with_extra(batch(rank, round)).pow(2).sum().backward();
  };
  const Grads expected = truth(2, make_net, window);
  enum class Zeroing { gradient_reducer, drop, in_place };
  for (const Zeroing zeroing : {Zeroing::gradient_reducer, Zeroing::drop, Zeroing::in_place}) {
    run_threads(2, [&](const Group& group) {
      auto net = built(make_net);
      torch::optim::SGD stock(net->parameters(), 0.1);
      GradientReducer gradient_reducer(group, named(net), small_buckets());
      for (int repeat = 0; repeat < 3; ++repeat) {
        if (zeroing == Zeroing::gradient_reducer) gradient_reducer.zero_all();
        if (zeroing == Zeroing::drop) stock.zero_grad(true);
        if (zeroing == Zeroing::in_place) stock.zero_grad(false);
        for (int64_t round = 0; round < 3; ++round) {
          gradient_reducer.set_sync(round == 2);
          CHECK(gradient_reducer.sync() == (round == 2));
          net->with_extra(batch(group.rank(), round)).pow(2).sum().backward();
          const at::Tensor grad = net->first->weight.grad();
          CHECK(bit_equal(group, {grad}) == (round == 2));
          CHECK(gradient_reducer.first_unreduced() == (round != 2));
        }
        CHECK(same(gradients_of(net->parameters()), expected));
      }
    });
  }
}

TEST_CASE("bfloat16 and float32 parameters have separate buckets and lose no precision") {
  const auto make = [] { return std::make_shared<Mixed>(); };
  const auto backward = [](const std::shared_ptr<Mixed>& net, int64_t rank) {
    net->forward(numbers({5, 4}, rank, at::kFloat)).pow(2).sum().backward();
  };
  std::vector<Grads> per_rank;
  for (int64_t rank = 0; rank < 2; ++rank) {
    auto net = built(make);
    backward(net, rank);
    per_rank.push_back(gradients_of(net->parameters()));
  }
  run_threads(2, [&](const Group& group) {
    auto net = built(make);
    GradientReducer gradient_reducer(group, named(net));
    for (int round = 0; round < 3; ++round) {
      gradient_reducer.zero_all();
      backward(net, group.rank());
      for (size_t i = 0; i < per_rank[0].size(); ++i) {
        const at::Tensor grad = net->parameters()[i].grad();
        CHECK((grad.scalar_type() == per_rank[0][i].scalar_type()));
        CHECK(torch::equal(grad, (per_rank[0][i] + per_rank[1][i]) / 2));  // in the parameter's own dtype
      }
    }
    CHECK(gradient_reducer.plan().buckets.size() == 2);
  });
}

TEST_CASE("float16 buckets are divided before they are summed, so that large gradients stay finite") {
  run_threads(4, [](const Group& group) {
    const at::Tensor weight = torch::ones({3}, torch::dtype(at::kHalf).requires_grad(true));
    GradientReducer gradient_reducer(group, {{"weight", weight}});
    for (int round = 0; round < 2; ++round) {
      gradient_reducer.zero_all();
      (weight * 40000.0).sum().backward();
      CHECK(weight.grad()[0].item<float>() == doctest::Approx(40000.0));
    }
  });
}

TEST_CASE("a channels-last parameter has a gradient with the same strides") {
  run_threads(2, [](const Group& group) {
    auto conv = built([] { return torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 3)); });
    conv->to(torch::kDouble);
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
    GradientReducer gradient_reducer(group, named(conv));
    for (int round = 0; round < 2; ++round) {
      gradient_reducer.zero_all();
      conv(numbers({2, 3, 5, 5}, group.rank())).pow(2).sum().backward();
      CHECK(conv->weight.grad().strides() == conv->weight.strides());
      CHECK(bit_equal(group, {conv->weight.grad()}));
    }
  });
}

TEST_CASE("the constructor broadcasts rank 0's parameters, frozen ones and all dtypes included") {
  run_threads(3, [](const Group& group) {
    const auto mine = static_cast<double>(group.rank());
    const at::Tensor trained = torch::full({2, 3}, mine, torch::dtype(at::kDouble).requires_grad(true));
    const at::Tensor half = torch::full({5}, mine + 1, torch::dtype(at::kBFloat16).requires_grad(true));
    const at::Tensor frozen = torch::full({4}, mine + 2, torch::dtype(at::kFloat));
    const GradientReducer gradient_reducer(group, {{"trained", trained}, {"half", half}, {"frozen", frozen}});
    CHECK(trained.min().item<double>() == 0.0);
    CHECK(trained.max().item<double>() == 0.0);
    CHECK(half.max().item<double>() == 1.0);
    CHECK(frozen.max().item<double>() == 2.0);
    CHECK(gradient_reducer.manages(trained));
    CHECK_FALSE(gradient_reducer.manages(frozen));
    CHECK(gradient_reducer.manages_exactly_these({half, trained, frozen}));
    CHECK_FALSE(gradient_reducer.manages_exactly_these({trained}));
  });
}

TEST_CASE("two gradient reducers reduce a GAN's models, also if one backward reaches both") {
  const auto make = [] { return std::make_shared<NetImpl>(); };
  const auto truth_of = [&](bool of_generator) {
    std::vector<Grads> per_rank;
    for (int64_t rank = 0; rank < 2; ++rank) {
      auto generator = built(make);
      auto judge = built([] { return torch::nn::Linear(3, 1); });
      judge->to(torch::kDouble);
      if (!of_generator) judge(generator->with_extra(batch(rank)).detach()).pow(2).sum().backward();
      if (of_generator) judge(generator->with_extra(batch(rank, 1))).pow(2).sum().backward();
      per_rank.push_back(gradients_of(of_generator ? generator->parameters() : judge->parameters()));
    }
    return mean_of(per_rank);
  };
  const Grads expected_judge = truth_of(false);
  const Grads expected_generator = truth_of(true);
  for (const bool through_run_backward : {false, true}) {
    run_threads(2, [&](const Group& group) {
      auto generator = built(make);
      auto judge = built([] { return torch::nn::Linear(3, 1); });
      judge->to(torch::kDouble);
      GradientReducer of_generator(group.duplicate(), named(generator), small_buckets());
      GradientReducer of_judge(group.duplicate(), named(judge), small_buckets());
      const std::vector<GradientReducer*> both{&of_generator, &of_judge};
      const auto backward = [&](const at::Tensor& loss) {
        through_run_backward ? run_backward(both, group, [&] { loss.backward(); }) : loss.backward();
      };
      for (int round = 0; round < 3; ++round) {
        of_judge.zero_all();
        backward(judge(generator->with_extra(batch(group.rank())).detach()).pow(2).sum());
        CHECK(same(gradients_of(judge->parameters()), expected_judge));
        of_generator.zero_all();
        backward(judge(generator->with_extra(batch(group.rank(), 1))).pow(2).sum());
        CHECK(same(gradients_of(generator->parameters()), expected_generator));
      }
    });
  }
}

TEST_CASE("a nested backward (activation checkpointing) is reduced correctly, plain and by run_backward") {
  const auto loss_of = [](const NetPtr& net, int64_t rank) {
    // extra is reached by the outer backward, the rest by two inner ones over the same weights.
    const at::Tensor x = batch(rank).requires_grad_(true);
    const at::Tensor a = Recompute::apply(x, net.get());
    const at::Tensor b = Recompute::apply(x * 2, net.get());
    return (a + b + net->extra(torch::cat({a, b}, 1))).pow(2).sum();
  };
  const auto plain_backward = [&](const NetPtr& net, int64_t rank) { loss_of(net, rank).backward(); };
  check_means(2, make_net, plain_backward);
  const Grads expected = truth(2, make_net, plain_backward);
  run_threads(2, [&](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    const std::vector<GradientReducer*> gradient_reducers{&gradient_reducer};
    for (int round = 0; round < 3; ++round) {
      gradient_reducer.zero_all();
      run_backward(gradient_reducers, group, [&] { loss_of(net, group.rank()).backward(); });
      CHECK(same(gradients_of(net->parameters()), expected));
    }
  });
}

TEST_CASE("the parameters of a torch::jit::Module are reduced like any") {
  const auto make = [] {
    torch::jit::Module net("net");
    net.register_parameter("weight", numbers({4, 3}, 1), false);
    net.register_parameter("bias", numbers({3}, 2), false);
    net.define("def forward(self, x):\n  return torch.tanh(x @ self.weight + self.bias)\n");
    for (const auto& parameter : net.parameters()) parameter.requires_grad_(true);
    return net;
  };
  const auto backward = [](torch::jit::Module& net, int64_t rank) {
    net.forward({batch(rank)}).toTensor().pow(2).sum().backward();
  };
  const auto list = [](const torch::jit::Module& net) {
    std::vector<at::Tensor> tensors;
    for (const auto& parameter : net.parameters()) tensors.push_back(parameter);
    return tensors;
  };
  std::vector<Grads> per_rank;
  for (int64_t rank = 0; rank < 2; ++rank) {
    auto net = built(make);
    backward(net, rank);
    per_rank.push_back(gradients_of(list(net)));
  }
  run_threads(2, [&](const Group& group) {
    auto net = built(make);
    std::vector<NamedTensor> parameters;
    for (const auto& item : net.named_parameters()) parameters.push_back({item.name, item.value});
    GradientReducer gradient_reducer(group, parameters, small_buckets());
    for (int round = 0; round < 3; ++round) {
      gradient_reducer.zero_all();
      backward(net, group.rank());
      CHECK(same(gradients_of(list(net)), mean_of(per_rank)));
    }
  });
}

TEST_CASE("an infinite gradient that was clipped does not affect the norms of later steps") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    const auto norm_of_step = [&](double factor) {
      return clipped_norm(gradient_reducer, net->with_extra(batch(group.rank())).sum() * factor);
    };
    const double finite = norm_of_step(1.0);
    CHECK(std::isfinite(finite));
    CHECK_FALSE(std::isfinite(norm_of_step(std::numeric_limits<double>::infinity())));
    CHECK(norm_of_step(1.0) == finite);
  });
}

TEST_CASE("a NaN of a parameter that a later step does not use does not affect its norm") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    const auto norm_of_step = [&](double factor) {
      return clipped_norm(gradient_reducer, net->forward(batch(group.rank())).sum() * factor);
    };
    const double finite = norm_of_step(1.0);
    CHECK_FALSE(std::isfinite(norm_of_step(std::numeric_limits<double>::quiet_NaN())));
    CHECK(norm_of_step(1.0) == finite);
    CHECK_FALSE(std::isfinite(norm_of_step(std::numeric_limits<double>::quiet_NaN())));
    gradient_reducer.zero_all();
    (group.rank() == 0 ? net->forward(batch(0)) : net->with_extra(batch(1))).sum().backward();
    CHECK(net->extra->bias.grad().equal(torch::full({3}, 2.5, torch::kDouble)));
  });
}

TEST_CASE("a conjugate or negative view of the bucket's memory counts with its values") {
  const auto filled = [](double number) {
    return torch::full({3}, c10::complex<double>(number, -2 * number), torch::kComplexDouble);
  };
  const auto lazy = [](const at::Tensor& gradient, bool negative) {
    return negative ? at::_neg_view(gradient) : gradient.conj();
  };
  for (const bool negative : {false, true}) {
    run_threads(2, [&](const Group& group) {
      const at::Tensor weight = torch::zeros({3}, torch::kComplexDouble).requires_grad_(true);
      GradientReducer gradient_reducer(group, {{"weight", weight}}, {});
      const auto backward = [&](double number) { torch::real(weight * filled(number)).sum().backward(); };
      backward(1);
      gradient_reducer.zero_all();
      gradient_reducer.set_sync(false);
      const double mine = static_cast<double>(group.rank()) + 1;
      backward(mine);  // its gradient is the conjugate of filled()
      weight.mutable_grad() = lazy(weight.grad(), negative);
      gradient_reducer.set_sync(true);
      backward(10 * mine);
      const at::Tensor first = negative ? -filled(1.5).conj() : filled(1.5);
      CHECK(torch::allclose(weight.grad().resolve_conj(), first + filled(15).conj().resolve_conj()));
      weight.mutable_grad() = lazy(weight.grad(), negative);
      CHECK_THROWS_WITH(gradient_reducer.before_step(), doctest::Contains("was assigned after the last reduction"));
    });
  }
}

// SPDX-License-Identifier: Apache-2.0
// The reducer's parameters as shards, and zeroing them bucket by bucket.
#include "tests/gradient/operators.hpp"
#include "tests/gradient/support.hpp"

using namespace gradient_testing;

namespace {

std::vector<std::string> names_of(const std::vector<accelerate::state::ParameterShard>& parameter_shards) {
  std::vector<std::string> names;
  for (const auto& param_shard : parameter_shards) names.push_back(param_shard.name);
  return names;
}

void train(const NetPtr& net, const Group& group) { (*net).forward(batch(group.rank())).pow(2).sum().backward(); }

// Runs test on two ranks, each with a net and a reducer with laid-out buckets.
void with_engine(const std::function<void(const NetPtr&, GradientReducer&, const Group&)>& test) {
  accelerate::comm::run_threads(
      2,
      [&](const Group& group) {
        auto net = built(make_net);
        GradientReducer gradient_reducer(group, named(net), small_buckets());
        train(net, group);
        test(net, gradient_reducer, group);
      },
      kTimeout);
}

}  // namespace

TEST_CASE("parameter shards cover whole parameters with gradients, in the order of the buckets") {
  with_engine([](const NetPtr& net, GradientReducer& gradient_reducer, const Group&) {
    const auto parameter_shards = gradient_reducer.parameter_shards();
    const auto parameters = net->named_parameters();
    REQUIRE(parameter_shards.size() == parameters.size());
    size_t next = 0;
    for (const auto& bucket : gradient_reducer.plan().buckets) {
      for (const int64_t item : bucket.items) {
        CHECK(parameter_shards[next++].name == parameters[static_cast<size_t>(item)].key());
      }
    }
    for (const auto& param_shard : parameter_shards) {
      const at::Tensor& parameter = parameters[param_shard.name];
      CHECK((param_shard.key == parameter.unsafeGetTensorImpl()));
      CHECK(param_shard.value.is_same(parameter));
      CHECK(param_shard.sizes == parameter.sizes().vec());
      CHECK(param_shard.begin == 0);
      CHECK(param_shard.end == parameter.numel());
      CHECK(param_shard.gradient.is_same(parameter.grad()));
      CHECK_FALSE(param_shard.master.defined());
      CHECK(param_shard.gradient.defined() == !param_shard.name.starts_with("extra"));
    }
  });
}

TEST_CASE("before the first reduction parameter shards are in the parameters' order") {
  accelerate::comm::run_threads(
      2,
      [&](const Group& group) {
        auto net = built(make_net);
        GradientReducer gradient_reducer(group, named(net), small_buckets());
        CHECK(names_of(gradient_reducer.parameter_shards()) == net->named_parameters().keys());
      },
      kTimeout);
}

TEST_CASE("zeroing in place is one fill per bucket, and the next gradients are the means") {
  with_engine([](const NetPtr& net, GradientReducer& gradient_reducer, const Group& group) {
    const auto buckets = static_cast<int64_t>(gradient_reducer.plan().buckets.size());
    REQUIRE(buckets > 1);
    int64_t unused = 0;  // a bucket without gradients is untouched
    for (const auto& bucket : gradient_reducer.plan().buckets) {
      const auto lies = [&](int64_t i) { return net->parameters()[static_cast<size_t>(i)].grad().defined(); };
      if (std::none_of(bucket.items.begin(), bucket.items.end(), lies)) ++unused;
    }
    const Grads first = gradients_of(net->parameters());
    auto called = operators_of([&] { gradient_reducer.zero(net->parameters(), /*set_to_none=*/false); });
    CHECK(called["aten::zero_"] == buckets - unused);
    for (const auto& parameter : net->parameters()) {
      if (parameter.grad().defined()) CHECK(parameter.grad().abs().max().item<double>() == 0);
    }
    CHECK_FALSE(net->extra->weight.grad().defined());
    CHECK_FALSE(gradient_reducer.first_unreduced());
    train(net, group);
    CHECK(same(gradients_of(net->parameters()), first));
  });
}

TEST_CASE("zeroing a part in place keeps the other gradients") {
  with_engine([](const NetPtr& net, GradientReducer& gradient_reducer, const Group& group) {
    const Grads before = gradients_of(net->parameters());
    const std::vector<at::Tensor> part{net->first->weight, net->second->bias};
    gradient_reducer.zero(part, /*set_to_none=*/false);
    const auto parameters = net->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const bool zeroed = parameters[i].is_same(part[0]) || parameters[i].is_same(part[1]);
      if (!before[i].defined()) continue;
      CHECK(torch::equal(parameters[i].grad(), zeroed ? torch::zeros_like(before[i]) : before[i]));
    }
    gradient_reducer.zero(parameters, false);
    train(net, group);
    CHECK(same(gradients_of(parameters), before));
  });
}

TEST_CASE("a gradient under another view of its bucket is not zeroed with the bucket") {
  accelerate::comm::run_threads(
      2,
      [&](const Group& group) {
        const auto seen_turned = torch::arange(1, 5, torch::kDouble).view({2, 2}).requires_grad_();
        const auto other = torch::ones({3}, torch::kDouble).requires_grad_();
        GradientReducer gradient_reducer(group, {{"turned", seen_turned}, {"other", other}});
        (seen_turned.pow(2).sum() + other.sum()).backward();
        REQUIRE(gradient_reducer.plan().buckets.size() == 1);
        const auto turned = seen_turned.grad().t();
        seen_turned.mutable_grad() = turned;
        const auto before = turned.clone();
        gradient_reducer.zero({other}, /*set_to_none=*/false);
        CHECK(torch::equal(seen_turned.grad(), before));
        CHECK(other.grad().abs().max().item<double>() == 0);
      },
      kTimeout);
}

TEST_CASE("a gradient reducer of frozen parameters joins reductions and returns no gradients") {
  accelerate::comm::run_threads(
      2,
      [&](const Group& group) {
        for (const bool given : {false, true}) {
          GradientReducerOptions options;
          if (given) options.plan.emplace();
          GradientReducer gradient_reducer(group, {{"frozen", torch::ones({3}, torch::kDouble)}}, options);
          gradient_reducer.join_backward();
          accelerate::gradient::run_backward(std::vector<GradientReducer*>{&gradient_reducer}, group, [] {});
          CHECK(gradient_reducer.gradients().empty());
          CHECK(gradient_reducer.parameter_shards().empty());
          gradient_reducer.zero_all();
        }
      },
      kTimeout);
}

TEST_CASE("a gradient that user code replaced or dropped is zeroed in place like the others") {
  with_engine([](const NetPtr& net, GradientReducer& gradient_reducer, const Group& group) {
    const Grads before = gradients_of(net->parameters());
    net->first->weight.mutable_grad() = torch::full_like(net->first->weight, 7);
    net->first->bias.mutable_grad().reset();
    gradient_reducer.zero(net->parameters(), false);
    CHECK(net->first->weight.grad().abs().max().item<double>() == 0);
    CHECK_FALSE(net->first->bias.grad().defined());
    CHECK_FALSE(gradient_reducer.first_unreduced());
    train(net, group);
    CHECK(same(gradients_of(net->parameters()), before));
  });
}

// SPDX-License-Identifier: Apache-2.0
// The engine's parameters as pieces, and zeroing them bucket by bucket.
#include "tests/gradient/operators.hpp"
#include "tests/gradient/support.hpp"

using namespace gradient_testing;

namespace {

std::vector<std::string> names_of(const std::vector<accelerate::state::Piece>& pieces) {
  std::vector<std::string> names;
  for (const auto& piece : pieces) names.push_back(piece.name);
  return names;
}

void train(const NetPtr& net, const Group& group) { (*net).forward(batch(group.rank())).pow(2).sum().backward(); }

// Runs test on two ranks, each with a net and an engine with laid-out buckets.
void with_engine(const std::function<void(const NetPtr&, Engine&, const Group&)>& test) {
  accelerate::comm::run_threads(
      2,
      [&](const Group& group) {
        auto net = built(make_net);
        Engine engine(group, named(net), small_buckets());
        train(net, group);
        test(net, engine, group);
      },
      kTimeout);
}

}  // namespace

TEST_CASE("pieces are the whole parameters with their gradients, in the order of the buckets") {
  with_engine([](const NetPtr& net, Engine& engine, const Group&) {
    const auto pieces = engine.pieces();
    const auto parameters = net->named_parameters();
    REQUIRE(pieces.size() == parameters.size());
    size_t next = 0;
    for (const auto& bucket : engine.plan().buckets) {
      for (const int64_t item : bucket.items) {
        CHECK(pieces[next++].name == parameters[static_cast<size_t>(item)].key());
      }
    }
    for (const auto& piece : pieces) {
      const at::Tensor& parameter = parameters[piece.name];
      CHECK((piece.key == parameter.unsafeGetTensorImpl()));
      CHECK(piece.value.is_same(parameter));
      CHECK(piece.sizes == parameter.sizes().vec());
      CHECK(piece.begin == 0);
      CHECK(piece.end == parameter.numel());
      CHECK(piece.gradient.is_same(parameter.grad()));
      CHECK_FALSE(piece.master.defined());
      CHECK(piece.gradient.defined() == !piece.name.starts_with("extra"));
    }
  });
}

TEST_CASE("before the first reduction pieces come in the parameters' order") {
  accelerate::comm::run_threads(
      2,
      [&](const Group& group) {
        auto net = built(make_net);
        Engine engine(group, named(net), small_buckets());
        CHECK(names_of(engine.pieces()) == net->named_parameters().keys());
      },
      kTimeout);
}

TEST_CASE("zeroing in place is one fill for each bucket, and the next gradients are the means") {
  with_engine([](const NetPtr& net, Engine& engine, const Group& group) {
    const auto buckets = static_cast<int64_t>(engine.plan().buckets.size());
    REQUIRE(buckets > 1);
    int64_t unused = 0;  // a bucket without gradients is untouched
    for (const auto& bucket : engine.plan().buckets) {
      const auto lies = [&](int64_t i) { return net->parameters()[static_cast<size_t>(i)].grad().defined(); };
      if (std::none_of(bucket.items.begin(), bucket.items.end(), lies)) ++unused;
    }
    const Grads first = gradients_of(net->parameters());
    auto called = operators_of([&] { engine.zero(net->parameters(), /*set_to_none=*/false); });
    CHECK(called["aten::zero_"] == buckets - unused);
    for (const auto& parameter : net->parameters()) {
      if (parameter.grad().defined()) CHECK(parameter.grad().abs().max().item<double>() == 0);
    }
    CHECK_FALSE(net->extra->weight.grad().defined());
    CHECK_FALSE(engine.unreduced());
    train(net, group);
    CHECK(same(gradients_of(net->parameters()), first));
  });
}

TEST_CASE("zeroing a part in place leaves the others' gradients alone") {
  with_engine([](const NetPtr& net, Engine& engine, const Group& group) {
    const Grads before = gradients_of(net->parameters());
    const std::vector<at::Tensor> part{net->first->weight, net->second->bias};
    engine.zero(part, /*set_to_none=*/false);
    const auto parameters = net->parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      const bool zeroed = parameters[i].is_same(part[0]) || parameters[i].is_same(part[1]);
      if (!before[i].defined()) continue;
      CHECK(torch::equal(parameters[i].grad(), zeroed ? torch::zeros_like(before[i]) : before[i]));
    }
    engine.zero(parameters, false);
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
        Engine engine(group, {{"turned", seen_turned}, {"other", other}});
        (seen_turned.pow(2).sum() + other.sum()).backward();
        REQUIRE(engine.plan().buckets.size() == 1);
        const auto turned = seen_turned.grad().t();
        seen_turned.mutable_grad() = turned;
        const auto before = turned.clone();
        engine.zero({other}, /*set_to_none=*/false);
        CHECK(torch::equal(seen_turned.grad(), before));
        CHECK(other.grad().abs().max().item<double>() == 0);
      },
      kTimeout);
}

TEST_CASE("an engine of frozen parameters takes part in what others reduce, and has nothing to give") {
  accelerate::comm::run_threads(
      2,
      [&](const Group& group) {
        for (const bool given : {false, true}) {
          EngineOptions options;
          if (given) options.plan.emplace();
          Engine engine(group, {{"frozen", torch::ones({3}, torch::kDouble)}}, options);
          engine.join_backward();
          accelerate::gradient::run_backward(std::vector<Engine*>{&engine}, group, [] {});
          CHECK(engine.gradients().empty());
          CHECK(engine.pieces().empty());
          engine.zero_all();
        }
      },
      kTimeout);
}

TEST_CASE("a gradient that user code replaced or dropped is zeroed in place like the others") {
  with_engine([](const NetPtr& net, Engine& engine, const Group& group) {
    const Grads before = gradients_of(net->parameters());
    net->first->weight.mutable_grad() = torch::full_like(net->first->weight, 7);
    net->first->bias.mutable_grad().reset();
    engine.zero(net->parameters(), false);
    CHECK(net->first->weight.grad().abs().max().item<double>() == 0);
    CHECK_FALSE(net->first->bias.grad().defined());
    CHECK_FALSE(engine.unreduced());
    train(net, group);
    CHECK(same(gradients_of(net->parameters()), before));
  });
}

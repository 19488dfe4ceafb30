// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "accelerate/sharding/sharded_parameters.hpp"
#include "tests/refusal.hpp"

using accelerate::comm::Group;
using accelerate::comm::run_threads;
using accelerate::sharding::ShardedParameters;
using accelerate::state::whole_parameter;

namespace {

torch::Tensor count_from(double start, at::IntArrayRef sizes) {
  return (torch::arange(c10::multiply_integers(sizes), torch::kDouble) + start).reshape(sizes);
}

ShardedParameters::Keys keys_of(const std::vector<torch::Tensor>& tensors) {
  ShardedParameters::Keys keys;
  for (const auto& tensor : tensors) keys.insert(tensor.unsafeGetTensorImpl());
  return keys;
}

}  // namespace

TEST_CASE("the parts share memory with the parameters, and after_step() gives every rank the values of their owners") {
  run_threads(3, [](const Group& group) {
    const auto a = count_from(0, {5, 6}).requires_grad_(true), b = count_from(100, {7}).requires_grad_(true);
    const auto unused = count_from(200, {9}).requires_grad_(true);
    ShardedParameters sharded(
        group, {whole_parameter("a", a), whole_parameter("unused", unused), whole_parameter("b", b)}, 1 << 20);
    CHECK(sharded.plan().units.size() == 1);
    a.mutable_grad() = count_from(0.5, {6, 5}).t();  // another layout than the parameter
    b.mutable_grad() = count_from(0.25, {7});
    const auto keys = keys_of({a, b, unused});
    {
      const torch::NoGradGuard no_grad;
      for (const auto& shard : sharded.shards(keys)) {
        CHECK(shard.value.dim() == 1);
        CHECK(shard.value.numel() == shard.end - shard.begin);
        if (shard.gradient.defined()) shard.value.sub_(shard.gradient);
        if (shard.name == "unused") CHECK_FALSE(shard.gradient.defined());
      }
    }
    sharded.after_step(keys);
    CHECK(a.detach().equal(count_from(0, {5, 6}) - count_from(0.5, {6, 5}).t()));
    CHECK(b.detach().equal(count_from(100, {7}) - count_from(0.25, {7})));
    CHECK(unused.detach().equal(count_from(200, {9})));
  });
}

TEST_CASE("only units with a listed parameter are exchanged") {
  run_threads(2, [](const Group& group) {
    const auto a = count_from(0, {20}).requires_grad_(true), b = count_from(0, {20}).requires_grad_(true);
    ShardedParameters sharded(group, {whole_parameter("a", a), whole_parameter("b", b)}, /*unit_bytes=*/160);
    for (const auto& tensor : {a, b}) tensor.mutable_grad() = torch::ones_like(tensor);
    {
      const torch::NoGradGuard no_grad;
      a.fill_(static_cast<double>(group.rank()));
      b.fill_(static_cast<double>(group.rank()));
    }
    sharded.after_step(keys_of({a}));
    CHECK(a.detach().equal(torch::arange(20).ge(16).to(torch::kDouble)));  // rank 0 owns the first 16 elements
    CHECK(b.detach().equal(torch::full({20}, static_cast<double>(group.rank()), torch::kDouble)));
    CHECK(sharded.shards({}).empty());
    CHECK_FALSE(sharded.range_of(&group).has_value());
  });
}

TEST_CASE("gather_to_rank_0() puts the parts together in the shape of the parameter") {
  run_threads(4, [](const Group& group) {
    const auto turned = count_from(0, {3, 4, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_(true);
    ShardedParameters sharded(group, {whole_parameter("turned", turned)}, 1 << 20);
    const auto shards = sharded.shards(keys_of({turned}));
    const auto part = shards.empty() ? torch::Tensor() : shards[0].value.detach();
    const auto whole = sharded.gather_to_rank_0(turned.unsafeGetTensorImpl(), part, "save_model");
    CHECK(whole.defined() == (group.rank() == 0));
    if (group.rank() == 0) CHECK(whole.equal(count_from(0, {3, 4, 2, 2})));
  });
}

TEST_CASE("a gradient of another dtype is refused") {
  run_threads(2, [](const Group& group) {
    const auto a = torch::zeros({20}).requires_grad_(true);
    ShardedParameters sharded(group, {whole_parameter("a", a)}, 1 << 20);
    a.mutable_grad() = torch::zeros({20});
    // LibTorch refuses to assign another dtype, so it changes afterwards.
    a.mutable_grad().set_data(torch::zeros({20}, torch::kDouble));
    const auto text = testing::refusal([&] { (void)sharded.shards(keys_of({a})); });
    CHECK_MESSAGE(text.ends_with("optimizer.step: the gradient of parameter a is Double, the parameter is Float; with "
                                 "sharding both must have one dtype"),
                  text);
  });
}

TEST_CASE("a rank that leaves is named by the exchange after a step and by the one of a checkpoint") {
  for (const bool in_step : {true, false}) {
    run_threads(
        2,
        [&](const Group& group) {
          const auto a = torch::zeros({20}).requires_grad_(true);
          ShardedParameters sharded(group, {whole_parameter("a", a)}, 1 << 20);
          if (group.rank() == 1) return;
          a.mutable_grad() = torch::zeros({20});
          const auto text = testing::refusal([&] {
            in_step ? sharded.after_step(keys_of({a}))
                    : void(sharded.gather_to_rank_0(a.unsafeGetTensorImpl(), torch::zeros({16}), "save_model"));
          });
          CHECK_MESSAGE(
              text.find(in_step ? "optimizer.step: the parameters that the ranks stepped on are not exchanged: "
                                : "save_model: the parts of parameter a are not gathered: ") != std::string::npos,
              text);
          CHECK_MESSAGE(text.find("rank 1") != std::string::npos, text);
        },
        std::chrono::seconds(5));
  }
}

// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <ATen/autocast_mode.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "accelerate/nn/linear.hpp"

namespace linear_testing {

using accelerate::nn::Linear;
using accelerate::nn::LinearImpl;
using torch::nn::LinearOptions;
using Stock = torch::nn::Linear;

/// Both layers from one state of the generator.
struct Pair {
  explicit Pair(const LinearOptions& options) {
    torch::manual_seed(5);
    stock = Stock(options);
    after_stock = torch::rand({1});
    torch::manual_seed(5);
    ours = Linear(options);
    after_ours = torch::rand({1});
  }
  Stock stock{nullptr};
  Linear ours{nullptr};
  at::Tensor after_stock, after_ours;
};

/// Names of the autograd nodes from a result to the leaves.
std::vector<std::string> nodes_of(const at::Tensor& result) {
  std::vector<std::string> names;
  std::vector<std::decay_t<decltype(result.grad_fn())>> open{
      result.grad_fn()};  // its pointer type depends on the version
  while (!open.empty()) {
    const auto node = open.back();
    open.pop_back();
    if (!node) continue;
    names.push_back(node->name());
    for (const auto& edge : node->next_edges()) open.push_back(edge.function);
  }
  return names;
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::string text_of(const torch::nn::Module& module) {
  std::ostringstream text;
  text << module;
  return text.str();
}

TEST_CASE("Linear has the parameters of torch::nn::Linear from the same random numbers") {
  for (const bool bias : {true, false}) {
    Pair pair(LinearOptions(7, 3).bias(bias));
    CHECK(pair.ours->named_parameters().keys() == pair.stock->named_parameters().keys());
    CHECK(pair.ours->weight.equal(pair.stock->weight));
    CHECK(pair.ours->bias.defined() == bias);
    if (bias) CHECK(pair.ours->bias.equal(pair.stock->bias));
    CHECK(pair.after_ours.equal(pair.after_stock));
  }
  CHECK(Linear(4, 5)->weight.sizes() == at::IntArrayRef({5, 4}));
}

TEST_CASE("outputs and gradients equal those of torch::nn::Linear for every shape of input") {
  const std::vector<std::vector<int64_t>> shapes{{7}, {4, 7}, {2, 4, 7}, {2, 3, 4, 7}, {0, 7}, {2, 0, 7}};
  for (const bool bias : {true, false}) {
    Pair pair(LinearOptions(7, 3).bias(bias));
    pair.stock->to(at::kDouble);
    pair.ours->to(at::kDouble);
    for (const auto& shape : shapes) {
      CAPTURE(shape.size());
      const at::Tensor x = torch::randn(shape, at::kDouble);
      const at::Tensor mine = x.clone().requires_grad_(), other = x.clone().requires_grad_();
      const at::Tensor seen = pair.ours(mine), expected = pair.stock(other);
      CHECK(seen.sizes() == expected.sizes());
      CHECK(torch::allclose(seen, expected, 1e-12, 1e-12));
      const at::Tensor factors = torch::randn_like(expected);
      (seen * factors).sum().backward();
      (expected * factors).sum().backward();
      CHECK(torch::allclose(mine.grad(), other.grad(), 1e-12, 1e-12));
      CHECK(torch::allclose(pair.ours->weight.grad(), pair.stock->weight.grad(), 1e-12, 1e-12));
      if (bias) CHECK(torch::allclose(pair.ours->bias.grad(), pair.stock->bias.grad(), 1e-12, 1e-12));
      pair.ours->zero_grad();
      pair.stock->zero_grad();
    }
    const at::Tensor strided = torch::randn({2, 7, 4}, at::kDouble).transpose(1, 2);
    CHECK(torch::allclose(pair.ours(strided), pair.stock(strided), 1e-12, 1e-12));
  }
}

TEST_CASE("the bias is added within the matrix product for every shape of input") {
  Pair pair(LinearOptions(7, 3));
  CHECK(has(nodes_of(pair.stock(torch::randn({2, 4, 7}))), "AddBackward0"));
  for (const auto& x : {torch::randn({4, 7}), torch::randn({2, 4, 7}), torch::randn({2, 3, 4, 7}),
                        torch::randn({2, 7, 4}).transpose(1, 2)}) {
    const auto nodes = nodes_of(pair.ours(x));
    CHECK(has(nodes, "AddmmBackward0"));
    CHECK_FALSE(has(nodes, "AddBackward0"));
  }
}

TEST_CASE("an input of another width is refused with LibTorch's error") {
  CHECK_THROWS_AS(Linear(7, 3)(torch::randn({2, 4, 6})), c10::Error);
  CHECK_THROWS_AS(Linear(7, 3)(torch::randn({})), c10::Error);
}

TEST_CASE("autocast computes in bfloat16") {
  Pair pair(LinearOptions(8, 8));
  const at::Tensor x = torch::randn({2, 4, 8});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor seen = pair.ours(x), expected = pair.stock(x);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::clear_cache();
  CHECK((seen.scalar_type() == at::kBFloat16));
  CHECK(torch::allclose(seen.to(at::kFloat), expected.to(at::kFloat), 0.05, 0.05));
}

TEST_CASE("the text contains the class and LibTorch's fields") {
  CHECK(text_of(*Linear(2, 3)) == "accelerate::nn::Linear(in_features=2, out_features=3, bias=true)");
  CHECK(text_of(*Stock(LinearOptions(2, 3).bias(false))) ==
        "torch::nn::Linear(in_features=2, out_features=3, bias=false)");
  CHECK(text_of(*Linear(LinearOptions(2, 3).bias(false))) ==
        "accelerate::nn::Linear(in_features=2, out_features=3, bias=false)");
}

TEST_CASE("a clone has the same class and owns its parameters, alone and in a Sequential") {
  Linear layer(2, 3);
  const auto copy = layer->clone();
  auto* const clone = copy->as<LinearImpl>();
  REQUIRE(clone != nullptr);
  CHECK(clone->weight.equal(layer->weight));
  CHECK_FALSE(clone->weight.is_same(layer->weight));
  CHECK(clone->parameters()[0].is_same(clone->weight));
  torch::nn::Sequential net(Linear(2, 3), torch::nn::ReLU());
  const auto twin = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
  REQUIRE(twin);
  CHECK(twin->ptr(0)->as<LinearImpl>() != nullptr);
  const at::Tensor x = torch::randn({2, 4, 2});
  CHECK(twin->forward(x).equal(net->forward(x)));
  CHECK(has(nodes_of(twin->forward(x)), "AddmmBackward0"));
}

TEST_CASE("code that searches for torch::nn::Linear finds the layer") {
  torch::nn::Sequential net(Linear(2, 3), torch::nn::ReLU(), Stock(3, 1));
  int64_t found = 0;
  net->apply([&](torch::nn::Module& module) { found += module.as<Stock>() != nullptr ? 1 : 0; });
  CHECK(found == 2);
}

TEST_CASE("files of torch::nn::Linear load into Linear and vice versa") {
  Pair one(LinearOptions(4, 3));
  torch::manual_seed(6);
  Linear ours(4, 3);
  Stock stock(4, 3);
  std::stringstream from_stock, from_ours;
  torch::save(one.stock, from_stock);
  torch::load(ours, from_stock);
  CHECK(ours->weight.equal(one.stock->weight));
  torch::save(ours, from_ours);
  torch::load(stock, from_ours);
  CHECK(stock->bias.equal(one.stock->bias));
}

}  // namespace linear_testing

// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <string>
#include <utility>
#include <vector>

#include "accelerate/nn/linear.hpp"

namespace convert_linear_testing {

using accelerate::nn::convert_linear;
using accelerate::nn::Linear;
using accelerate::nn::LinearConversion;
using accelerate::nn::LinearImpl;
using torch::nn::Sequential;
using Stock = torch::nn::Linear;
using Names = std::vector<std::string>;

struct HolderImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return ours(layers->forward(first(x))); }
  Stock first = register_module("first", Stock(3, 3));
  Sequential layers = register_module("layers", Sequential(Stock(3, 3), torch::nn::ReLU()));
  Linear ours = register_module("ours", Linear(3, 3));
};
TORCH_MODULE(Holder);

struct OwnLinearImpl : torch::nn::LinearImpl {
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& x) { return x; }
};
TORCH_MODULE(OwnLinear);

Names kept(const LinearConversion& report) {
  Names names;
  for (const auto& each : report.kept) names.push_back(each.name);
  return names;
}

TEST_CASE("convert_linear replaces layers in containers; names, tensors and modes stay") {
  torch::nn::ModuleList items(Stock(2, 2), torch::nn::ReLU());
  using Entries = std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>;
  torch::nn::ModuleDict named(Entries{{"a", Stock(torch::nn::LinearOptions(2, 2).bias(false)).ptr()}});
  torch::nn::ModuleList model(Sequential(Stock(3, 3), Holder()), items, named);
  named["a"]->eval();
  items[0]->as<Stock>()->weight.set_requires_grad(false);
  const auto keys = model->named_parameters().keys();
  const auto tensors = model->parameters();
  torch::manual_seed(1);
  const LinearConversion report = convert_linear(model);
  const at::Tensor drawn = torch::rand({1});
  torch::manual_seed(1);
  CHECK(drawn.equal(torch::rand({1})));  // no random numbers were drawn
  CHECK(report.exchanged == Names{"0.0", "0.1.layers.0", "1.0", "2.a"});
  CHECK(kept(report) == Names{"0.1.first"});
  CHECK(model->named_parameters().keys() == keys);
  for (size_t i = 0; i < tensors.size(); ++i) CHECK(model->parameters()[i].is_same(tensors[i]));
  CHECK(items[0]->as<LinearImpl>()->is_training());
  CHECK_FALSE(items[0]->as<LinearImpl>()->weight.requires_grad());
  CHECK_FALSE(named["a"]->as<LinearImpl>()->is_training());
  CHECK_FALSE(named["a"]->as<LinearImpl>()->bias.defined());
  CHECK(model[0]->named_children()["0"]->as<LinearImpl>() != nullptr);
  CHECK(convert_linear(model).exchanged.empty());
}

TEST_CASE("a converted Sequential calls the new layer") {
  Sequential net(Stock(3, 4), torch::nn::ReLU(), Stock(4, 2));
  net->to(at::kDouble);
  const at::Tensor x = torch::randn({2, 5, 3}, at::kDouble);
  const at::Tensor before = net->forward(x);
  CHECK(before.grad_fn()->name() == "AddBackward0");
  CHECK(convert_linear(net).exchanged == Names{"0", "2"});
  const at::Tensor after = net->forward(x);
  CHECK(after.grad_fn()->name() == "ViewBackward0");  // of the product's rows
  CHECK(torch::allclose(after, before, 1e-12, 1e-12));
}

TEST_CASE("a layer in two places stays one layer") {
  Stock shared(3, 3);
  Sequential net(shared, torch::nn::ReLU(), shared);
  CHECK(convert_linear(net).exchanged == Names{"0", "2"});
  CHECK(net->ptr(0) == net->ptr(2));
  CHECK(net->ptr(0)->as<LinearImpl>()->weight.is_same(shared->weight));
}

TEST_CASE("layers that cannot be replaced are named with the reason, and still run") {
  Holder holder;
  const auto report = convert_linear(*holder);
  CHECK(report.exchanged == Names{"layers.0"});
  REQUIRE(report.kept.size() == 1);
  CHECK(report.kept[0].name == "first");
  CHECK(report.kept[0].reason ==
        "it is a member of convert_linear_testing::HolderImpl, which calls the layer that it holds; declare it as "
        "accelerate::nn::Linear");
  CHECK(holder->first(torch::randn({2, 3})).sizes() == at::IntArrayRef({2, 3}));

  Sequential own((OwnLinear(3, 3)));
  const auto of_own = convert_linear(own);
  CHECK(of_own.exchanged.empty());
  REQUIRE(of_own.kept.size() == 1);
  CHECK(of_own.kept[0].name == "0");
  CHECK(of_own.kept[0].reason ==
        "convert_linear_testing::OwnLinearImpl derives from torch::nn::Linear and may have its own forward(); "
        "derive it from accelerate::nn::Linear");

  const auto alone = convert_linear(Stock(3, 3));
  REQUIRE(alone.kept.size() == 1);
  CHECK(alone.kept[0].name == "the module itself");
  CHECK(alone.kept[0].reason == "its owner holds it; construct it as accelerate::nn::Linear");
  CHECK(convert_linear(Linear(3, 3)).kept.empty());
}

}  // namespace convert_linear_testing

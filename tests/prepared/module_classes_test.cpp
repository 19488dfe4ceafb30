// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <torch/script.h>

#include <string>
#include <vector>

#include "accelerate/prepared/module_classes.hpp"
#include "tests/refusal.hpp"

namespace {

using Names = std::vector<std::string>;

namespace nets {

struct HeadImpl : torch::nn::Module {
  HeadImpl() { register_module("linear", torch::nn::Linear(1, 1)); }
};
TORCH_MODULE(Head);

struct Block : torch::nn::Module {
  Block() { register_module("head", Head()); }
};

template <typename Inner>
struct Wrapped : torch::nn::Module {
  Wrapped() { register_module("inner", std::make_shared<Inner>()); }
};

struct Net : torch::nn::Module {
  Net() {
    register_module("first", std::make_shared<Block>());
    register_module("last", std::make_shared<Wrapped<Block>>());
  }
};

}  // namespace nets

Names find(const Names& classes) {
  const auto net = std::make_shared<nets::Net>();
  return accelerate::prepared::modules_of_classes(*net, classes, {});
}

TEST_CASE("modules are found by class with and without namespaces and the suffix of holders") {
  CHECK(find({"Block"}) == Names{"last.inner", "first"});
  CHECK(find({"Head"}) == Names{"last.inner.head", "first.head"});
  CHECK(find({"HeadImpl"}) == find({"Head"}));
  CHECK(find({"torch::nn::LinearImpl"}) == Names{"last.inner.head.linear", "first.head.linear"});
  CHECK(find({}) == Names{});
}

TEST_CASE("modules within others come first, so that a parameter belongs to the innermost") {
  CHECK(find({"Block", "Head"}) == Names{"last.inner.head", "last.inner", "first.head", "first"});
}

TEST_CASE("a class without modules is refused with the classes of the model, and the model itself does not count") {
  const std::string reason =
      ", but no module within the model is of this class; its classes are Block, Head, Linear, Wrapped<";
  CHECK(
      testing::refusal([] { find({"Blok"}); }).starts_with("prepare: transformer_cls_names_to_wrap has Blok" + reason));
  CHECK(testing::refusal([] {
          find({"Head", "Net"});
        }).starts_with("prepare: transformer_cls_names_to_wrap has Net" + reason));
}

TEST_CASE("modules of TorchScript are found by class") {
  torch::jit::Module block("__torch__.nets.Block");
  block.register_parameter("weight", torch::zeros({1}), false);
  torch::jit::Module net("__torch__.nets.Net");
  net.register_module("block", block);
  CHECK(accelerate::prepared::modules_of_classes(net, {"Block"}, {}) == Names{"block"});
  CHECK(testing::refusal([&] { static_cast<void>(accelerate::prepared::modules_of_classes(net, {"Net"}, {})); }) ==
        "prepare: transformer_cls_names_to_wrap has Net, but no module within the model is of this class; its "
        "classes are Block");
}

}  // namespace

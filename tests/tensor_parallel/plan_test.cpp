// SPDX-License-Identifier: Apache-2.0
#include "tests/tensor_parallel/support.hpp"
//
#include "accelerate/nn/linear.hpp"
#include "accelerate/tensor_parallel/plan.hpp"

using namespace tensor_parallel_testing;
using accelerate::comm::run_threads;
using enum ParallelStyle;

namespace {

/// An embedding, two blocks of linear layers, and a convolution, in containers.
struct ContainerNetImpl : torch::nn::Module {
  ContainerNetImpl() {
    const auto block = [] {
      return torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::Tanh(), torch::nn::Linear(8, 4));
    };
    blocks->push_back(block());
    blocks->push_back(block());
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = input->forward(ids);
    for (const auto& each : *blocks) x = x + each->as<torch::nn::Sequential>()->forward(x);
    return conv->forward(x.unsqueeze(1)) + own(x).sum();
  }
  torch::nn::Sequential input = register_module("input", torch::nn::Sequential(torch::nn::Embedding(6, 4)));
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
  torch::nn::Sequential conv =
      register_module("conv", torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)),
                                                    torch::nn::ReLU(), torch::nn::Conv2d(4, 2, 1)));
  torch::nn::Linear own = register_module("own", torch::nn::Linear(4, 2));
};
TORCH_MODULE(ContainerNet);

/// A layer with an own forward and parameter.
struct LoraImpl : torch::nn::LinearImpl {
  LoraImpl() : torch::nn::LinearImpl(4, 8) {}
  at::Tensor forward(const at::Tensor& x) { return torch::nn::LinearImpl::forward(x) + x.matmul(a.t()); }
  at::Tensor a = register_parameter("a", torch::ones({8, 4}));
};
TORCH_MODULE(Lora);

struct ScaledConvImpl : torch::nn::Conv2dImpl {
  using torch::nn::Conv2dImpl::Conv2dImpl;
};
TORCH_MODULE(ScaledConv);

/// A class that calls the layers that it holds.
struct PairImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return second(first(x)); }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(4, 4));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(4, 4));
};
TORCH_MODULE(Pair);

/// A projection with the weight of an embedding.
struct TiedHeadImpl : torch::nn::Module {
  explicit TiedHeadImpl(const at::Tensor& shared) : weight(register_parameter("weight", shared)) {}
  at::Tensor forward(const at::Tensor& x) { return x.matmul(weight.t()); }
  at::Tensor weight;
};
TORCH_MODULE(TiedHead);

/// Two containers, with one layer in both.
torch::nn::ModuleList shared_layer() {
  const torch::nn::Linear shared(4, 8);
  const auto block = [&] { return torch::nn::Sequential(shared, torch::nn::Tanh(), torch::nn::Linear(8, 4)); };
  torch::nn::ModuleList list(block(), block());
  list->to(at::kDouble);
  return list;
}

at::Tensor output_of_blocks(const torch::nn::ModuleList& list, at::Tensor x) {
  for (const auto& each : *list) x = x + each->as<torch::nn::Sequential>()->forward(x);
  return x;
}

const ParallelPlan kPlan{
    {"input.0", vocab}, {"blocks.*.0", colwise}, {"blocks.*.2", rowwise}, {"conv.0", colwise}, {"conv.2", rowwise}};

}  // namespace

TEST_CASE("a plan splits the layers of containers, with the output and gradients of one process") {
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    run_threads(ranks, [](const Group& group) {
      auto stock = seeded([] { return ContainerNet(); });
      auto split = seeded([] { return ContainerNet(); });
      CHECK(tensor_parallel(split, kPlan, group) == std::vector<std::string>{"input.0", "blocks.0.0", "blocks.0.2",
                                                                             "blocks.1.0", "blocks.1.2", "conv.0",
                                                                             "conv.2"});
      const at::Tensor ids = tokens({3, 5}, 1, 6);
      const at::Tensor seen = split(ids), expected = stock(ids);
      CHECK(close(seen, expected));
      seen.square().sum().backward();
      expected.square().sum().backward();
      check_same_gradients(split, stock, 1e-11);
      CHECK(split->named_parameters()["blocks.1.0.weight"].size(0) == 8 / group.size());
    });
  }
}

TEST_CASE("a plan that does not fit the model is refused, and the model is not changed") {
  run_threads(2, [](const Group& group) {
    auto net = seeded([] { return ContainerNet(); });
    const auto text = [&](const ParallelPlan& plan) { return refused([&] { tensor_parallel(net, plan, group); }); };
    CHECK(text({{"conv.0", colwise}, {"blocks.*.5", rowwise}}) ==
          "tensor_parallel: the plan has 'blocks.*.5', which is not a layer of the model");
    CHECK(
        text({{"blocks.0", colwise}}) ==
        "tensor_parallel: blocks.0 is torch::nn::SequentialImpl, which cannot be split colwise; colwise needs Linear, "
        "Conv2d or MultiheadAttention, rowwise Linear or Conv2d, vocab Embedding");
    CHECK(text({{"input.0", rowwise}}) ==
          "tensor_parallel: input.0 is torch::nn::EmbeddingImpl, which cannot be split rowwise; colwise needs Linear, "
          "Conv2d or MultiheadAttention, rowwise Linear or Conv2d, vocab Embedding");
    CHECK(text({{"blocks.*.0", colwise}, {"blocks.1.*", rowwise}}) ==
          "tensor_parallel: blocks.1.0 matches 'blocks.*.0' and 'blocks.1.*' of the plan");
    CHECK(text({{"conv.0", rowwise}}) ==
          "row_parallel_conv2d: in_channels is 1, must be divisible by the 2 ranks of the group");
    CHECK(text({{"conv.0", group.rank() == 0 ? colwise : rowwise}}) ==
          "tensor_parallel: the plans differ: rank 0 of the group splits [conv.0 colwise], rank 1 [conv.0 rowwise]");
    auto stock = seeded([] { return ContainerNet(); });
    CHECK(torch::equal(net(tokens({2, 3}, 1, 6)), stock(tokens({2, 3}, 1, 6))));
    tensor_parallel(net, {{"conv.0", colwise}, {"conv.2", rowwise}}, group);
    CHECK(text({{"conv.0", colwise}}).find("which cannot be split colwise") != std::string::npos);
  });
}

TEST_CASE("attention in a list, a dictionary and a Sequential is split by heads") {
  run_threads(2, [](const Group& group) {
    const auto make = [] {
      const auto attention = [] {
        torch::nn::MultiheadAttention layer(8, 4);
        layer->to(at::kDouble);
        return layer.ptr();
      };
      torch::nn::ModuleDict dict;
      dict->update({{"a", attention()}});
      return torch::nn::ModuleList(attention(), dict, torch::nn::Sequential(torch::nn::MultiheadAttention(8, 2)));
    };
    auto stock = seeded(make), split = seeded(make);
    CHECK(tensor_parallel(split, {{"0", colwise}, {"1.a", colwise}, {"2.0", colwise}}, group).size() == 3);
    CHECK(split[2]->as<torch::nn::Sequential>()->ptr(0)->as<ParallelMultiheadAttention>() != nullptr);
    const at::Tensor x = numbers({3, 2, 8}, 1);
    const auto expected_of = [](const auto& layer, const at::Tensor& input) {
      return std::get<0>(layer->template as<torch::nn::MultiheadAttention>()->forward(input, input, input));
    };
    const auto seen_of = [](const auto& layer, const at::Tensor& input) {
      return layer->template as<ParallelMultiheadAttention>()->forward(input, input, input);
    };
    const at::Tensor expected =
        expected_of(stock[1]->as<torch::nn::ModuleDict>()->items()[0].second, expected_of(stock[0], x));
    const at::Tensor seen = seen_of(split[1]->as<torch::nn::ModuleDict>()->items()[0].second, seen_of(split[0], x));
    CHECK(close(seen, expected));
    CHECK(refused([&] {
            tensor_parallel(stock, {{"0.out_proj", rowwise}}, group);
          }).find("members of classes") != std::string::npos);
    CHECK(refused([&] {
            tensor_parallel(stock, {{"0", rowwise}}, group);
          }).find("which cannot be split rowwise") != std::string::npos);
  });
}

TEST_CASE("all layers that cannot be replaced are named") {
  run_threads(2, [](const Group& group) {
    auto net = seeded([] { return torch::nn::Sequential(Pair(), torch::nn::Linear(4, 8), Pair()); });
    const std::string members = refused([&] {
      tensor_parallel(net, {{"*.first", colwise}, {"1", colwise}, {"*.second", rowwise}}, group);
    });
    const std::string pair = net->ptr(0)->name();
    CHECK(
        members ==
        fmt::format("tensor_parallel: these layers of the plan are members of classes, which call the layers that they "
                    "hold: 0.first of {0}, 0.second of {0}, 2.first of {0}, 2.second of {0}; declare them as "
                    "parallel layers, or put them in a Sequential",
                    pair));
    auto derived = seeded([] { return torch::nn::Sequential(Lora(), torch::nn::Linear(8, 4), ScaledConv(1, 2, 1)); });
    CHECK(refused([&] {
            tensor_parallel(derived, {{"0", colwise}, {"1", rowwise}, {"2", colwise}}, group);
          }) ==
          fmt::format("tensor_parallel: these layers of the plan are of user-defined classes, and parallel layers "
                      "would lack their "
                      "forward and parameters: 0 is {}, 2 is {}; derive the class from a parallel layer and declare it",
                      derived->ptr(0)->name(), derived->ptr(2)->name()));
    CHECK(derived->parameters().size() == 7);
    auto ours = seeded([] { return torch::nn::Sequential(accelerate::nn::Linear(4, 8)); });
    tensor_parallel(ours, {{"0", colwise}}, group);
    CHECK(ours->parameters()[0].size(0) == 4);
  });
}

TEST_CASE("a plan that would untie a parameter is refused with both names") {
  run_threads(2, [](const Group& group) {
    const auto text = [&](const auto& net, const ParallelPlan& plan) {
      return refused([&] { tensor_parallel(net, plan, group); });
    };
    const auto tied = [](const std::string& name, const std::string& other) {
      return "tensor_parallel: parameter " + name + " is also registered as " + other +
             ", and the plan would untie them; leave its layer out of the plan, or declare a parallel layer and use "
             "its "
             "weight in both places";
    };
    auto net = seeded([] {
      const torch::nn::Embedding embedding(6, 4);
      return torch::nn::Sequential(embedding, TiedHead(embedding->weight));
    });
    CHECK(text(net, {{"0", vocab}}) == tied("0.weight", "1.weight"));
    auto list = seeded(shared_layer);
    CHECK(text(list, {{"0.0", colwise}, {"0.2", rowwise}}) == tied("0.0.weight", "1.0.weight"));
    CHECK(text(list, {{"0.0", colwise}, {"1.0", rowwise}}) ==
          "tensor_parallel: 0.0 and 1.0 are the same layer, which the plan splits colwise and rowwise");
    CHECK(list->parameters().size() == 8);
  });
}

TEST_CASE("a layer in two containers is replaced by one layer") {
  run_threads(2, [](const Group& group) {
    auto stock = seeded(shared_layer), split = seeded(shared_layer);
    tensor_parallel(split, {{"*.0", colwise}, {"*.2", rowwise}}, group);
    const auto first = [&](size_t i) { return split[i]->as<torch::nn::Sequential>()->ptr(0); };
    CHECK(first(0) == first(1));
    CHECK(first(0) == split[1]->named_children()["0"]);
    const at::Tensor x = numbers({3, 4}, 1);
    const at::Tensor seen = output_of_blocks(split, x), expected = output_of_blocks(stock, x);
    CHECK(close(seen, expected));
    seen.square().sum().backward();
    expected.square().sum().backward();
    check_same_gradients(split, stock, 1e-11);
  });
}

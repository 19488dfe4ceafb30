// SPDX-License-Identifier: Apache-2.0
// Pipelines over lists of modules instead of a Sequential.
#include "tests/testing.hpp"
//
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/checkpoint/folder.hpp"
#include "tests/pipeline/prepared_training.hpp"
#include "tests/refusal.hpp"

namespace pipeline_testing {
namespace {

using accelerate::comm::run_threads;
using accelerate::pipeline::Layers;
using sharding_testing::Block;
using testing::refusal;
using torch::nn::AnyModule;

/// Modules of four types, without their container.
struct Parts {
  Parts() { std::ignore = filled(in_sequential()); }
  [[nodiscard]] Sequential in_sequential() const { return Sequential(embedding, first, second, head); }
  [[nodiscard]] std::vector<AnyModule> in_vector() const {
    return {AnyModule(embedding), AnyModule(first), AnyModule(second), AnyModule(head)};
  }

  torch::nn::Embedding embedding{10, 6};
  Block first{6}, second{6};
  torch::nn::Linear head{6, 3};
};

std::vector<std::string> names_of(const torch::nn::Module& module) { return module.named_parameters().keys(); }

/// Losses and gradients of three steps. Gradients accumulate over the steps.
std::vector<torch::Tensor> results_of(Pipeline& pipeline) {
  std::vector<torch::Tensor> results;
  for (int64_t step = 0; step < 3; ++step) {
    const auto ids = torch::arange(35).add(step).mul(7).remainder(10).reshape({7, 5});
    results.push_back(pipeline.train_step(ids, waves({7, 5, 3}, 0.4), squared_error));
  }
  for (const auto& parameter : pipeline.parameters()) results.push_back(parameter.grad());
  return results;
}

void check_same_bits(const std::vector<torch::Tensor>& results, const std::vector<torch::Tensor>& expected) {
  REQUIRE(results.size() == expected.size());
  for (size_t i = 0; i < results.size(); ++i) CHECK(results[i].equal(expected[i]));
}

/// forward() has two arguments.
struct TwoInputsImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& y) { return x + y; }
};
TORCH_MODULE(TwoInputs);

struct PairImpl : torch::nn::Module {
  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& x) { return {x, x}; }
};
TORCH_MODULE(Pair);

}  // namespace

TEST_CASE("a list of modules has the losses, gradients and names of a Sequential, to the bit") {
  run_threads(2, [](const Group& group) {
    for (const auto& division : std::vector<std::vector<int64_t>>{{}, {1, 3}, {3, 1}}) {
      const PipelineOptions options{.micro_batches = 3, .layers_per_stage = division};
      const Parts parts, holders, any;
      Pipeline sequential(group, parts.in_sequential(), options);
      Pipeline list(group, {holders.embedding, holders.first, holders.second, holders.head}, options);
      Pipeline vector(group, any.in_vector(), options);
      const auto expected = results_of(sequential);
      check_same_bits(results_of(list), expected);
      check_same_bits(results_of(vector), expected);
      CHECK(names_of(list) == names_of(sequential));
      CHECK(names_of(vector) == names_of(sequential));
      CHECK(names_of(list).front() == (group.rank() == 0  ? "0.weight"
                                       : division.empty() ? "2.norm.weight"
                                       : division[0] == 1 ? "1.norm.weight"
                                                          : "3.weight"));
      CHECK(list.layers_per_stage() == sequential.layers_per_stage());
    }
  });
}

TEST_CASE("a list of modules on devices of one process trains like a Sequential") {
  const Parts parts, holders;
  Pipeline sequential({at::kCPU, at::kCPU}, parts.in_sequential(), {.micro_batches = 2});
  Pipeline list({at::kCPU, at::kCPU}, {holders.embedding, holders.first, holders.second, holders.head},
                {.micro_batches = 2});
  check_same_bits(results_of(list), results_of(sequential));
  CHECK(names_of(list) == names_of(sequential));
  CHECK(list.parameters()[0].is_same(holders.embedding->weight));  // shared with the caller
}

TEST_CASE("a list takes holders, shared pointers and AnyModules, and a vector may be filled in a loop") {
  const Parts parts, mixed;
  Pipeline sequential(Group(), parts.in_sequential());
  Pipeline list(Group(), {mixed.embedding, AnyModule(mixed.first), mixed.second.ptr(), mixed.head});
  const auto expected = results_of(sequential);
  check_same_bits(results_of(list), expected);

  const Parts looped;
  std::vector<AnyModule> layers{AnyModule(looped.embedding)};
  for (const auto& block : {looped.first, looped.second}) layers.emplace_back(block);
  layers.emplace_back(looped.head);
  Pipeline vector(Group(), std::move(layers));
  check_same_bits(results_of(vector), expected);
}

TEST_CASE("a Sequential in a list is one layer, whose names begin with its position") {
  const Parts parts, nested;
  Pipeline sequential({at::kCPU, at::kCPU}, parts.in_sequential());
  Pipeline list({at::kCPU, at::kCPU},
                {Sequential(nested.embedding, nested.first), Sequential({{"block", nested.second}}), nested.head},
                {.layers_per_stage = {1, 2}});
  check_same_bits(results_of(list), results_of(sequential));
  const auto names = names_of(list);
  CHECK(names[0] == "0.0.weight");
  CHECK(names[1] == "0.1.norm.weight");
  CHECK(names[6] == "1.block.norm.weight");
  CHECK(names.back() == "2.bias");

  const Sequential alone(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
  CHECK(names_of(Pipeline(Group(), alone))[0] == "0.weight");
  CHECK(names_of(Pipeline(Group(), {alone}))[0] == "0.0.weight");
}

TEST_CASE("layers in braces may have names") {
  const torch::nn::Linear front(2, 2), back(2, 2);
  CHECK(names_of(Pipeline(Group(), {{"front", front}, {"back", back}})) ==
        std::vector<std::string>{"front.weight", "front.bias", "back.weight", "back.bias"});
}

TEST_CASE("layers of other ranks are released if the list keeps the only references") {
  run_threads(2, [](const Group& group) {
    std::vector<std::weak_ptr<torch::nn::Module>> modules;
    std::vector<AnyModule> layers;
    for (int64_t i = 0; i < 2; ++i) {
      layers.emplace_back(torch::nn::Linear(2, 2));
      modules.emplace_back(layers.back().ptr());
    }
    const Pipeline pipeline(group, std::move(layers));
    for (size_t i = 0; i < 2; ++i) CHECK(modules[i].expired() == (static_cast<int64_t>(i) != group.rank()));
  });
}

TEST_CASE("a weight of two modules of a list is tied") {
  run_threads(2, [](const Group& group) {
    torch::nn::Embedding tokens(10, 6);
    Block block(6);
    TiedHead head(tokens->weight);
    std::ignore = filled(Sequential(tokens, block, head));
    Pipeline list(group, {tokens, block, head}, {.micro_batches = 2, .layers_per_stage = {2, 1}});
    torch::nn::Embedding others(10, 6);
    auto whole = filled(Sequential(others, Block(6), TiedHead(others->weight)));
    const auto ids = torch::arange(20).remainder(10).reshape({4, 5}), target = waves({4, 5, 10}, 0.4);
    list.train_step(ids, target, squared_error);
    squared_error(whole->forward(ids), target).backward();
    const auto expected = whole->named_parameters();
    for (const auto& item : list.named_parameters()) {
      CHECK(largest_difference({item.value().grad()}, {expected[item.key()].grad()}) < 1e-12);
    }
  });
}

TEST_CASE("files of a pipeline over a list have the names of the positions, and load into a Sequential") {
  run_threads(2, [](const Group& world) {
    const testing::SharedFolder folder(world);
    Accelerator accelerator = on_mesh(world, {.pp_size = 2});
    const Parts parts;
    const auto net = std::make_shared<Pipeline>(accelerator.pipeline_parallel_group(), Layers(parts.in_vector()));
    const auto model = accelerator.prepare(net);
    model->train_step(torch::arange(10).reshape({2, 5}), waves({2, 5, 3}, 0.4), squared_error);
    accelerator.save_model(model, folder.path);
    const auto dict = Accelerator::get_state_dict(model);
    if (world.rank() == 0) {
      CHECK(dict.keys() == names_of(*parts.in_sequential()));
      CHECK(dict.keys().front() == "0.weight");
    }
    Accelerator one = alone();
    auto whole = Sequential(torch::nn::Embedding(10, 6), Block(6), Block(6), torch::nn::Linear(6, 3));
    whole->to(torch::kDouble);
    const auto loaded = one.prepare(whole);
    CHECK((one.load_model(loaded, folder.path) == accelerate::LoadedModel{}));
    CHECK(difference(*net, whole) == 0);
    CHECK(difference(*net, parts.in_sequential()) == 0);
  });
}

TEST_CASE("costs are measured for lists of modules") {
  const torch::nn::Linear wide(8, 64), narrow(64, 2);
  CHECK(accelerate::pipeline::parameter_costs({wide, narrow}) == std::vector<double>{577, 131});
  CHECK(accelerate::pipeline::measured_costs({wide, narrow}, torch::ones({4, 8})).size() == 2);
}

TEST_CASE("an empty list and a null module are refused") {
  CHECK(refusal([] { Pipeline(Group(), {}); }) == "Pipeline: the model is empty");
  CHECK(refusal([] { Pipeline(Group(), std::vector<AnyModule>()); }) == "Pipeline: the model is empty");
  const torch::nn::Linear linear(2, 2), null(nullptr);
  const std::string text = "layers: layer 1 is null, must be a module";
  CHECK(refusal([&] { Pipeline(Group(), {linear, null, linear}); }) == text);
  CHECK(refusal([&] { Pipeline(Group(), {linear, std::shared_ptr<Block::ContainedType>()}); }) == text);
  CHECK(refusal([&] { Pipeline(Group(), {linear, Sequential(nullptr)}); }) == text);
  CHECK(refusal([&] { Pipeline(Group(), std::vector<AnyModule>{AnyModule(linear), AnyModule()}); }) == text);
  CHECK(refusal([&] {
          Pipeline(Group(),
                   std::vector<AnyModule>{AnyModule(linear), AnyModule(std::shared_ptr<Block::ContainedType>())});
        }) == text);
}

// A holder of such a module in braces does not compile, see layers_refused.cpp.
TEST_CASE("a module with another forward() in a vector is named with its stage when it is called") {
  Pipeline two(Group(), std::vector<AnyModule>{AnyModule(torch::nn::Linear(2, 2)), AnyModule(TwoInputs())});
  const std::string place = "Pipeline.forward: stage 0, micro-batch 0, forward: ";
  const std::string two_inputs = "pipeline_testing::(anonymous namespace)::TwoInputsImpl";
  CHECK(refusal([&] {
          two.forward(torch::ones({2, 2}));
        }) == place + two_inputs + "'s forward() method expects 2 argument(s), but received 1. If " + two_inputs +
                  "'s forward() method has default arguments, please make sure the forward() method is declared with a "
                  "corresponding `FORWARD_HAS_DEFAULT_ARGS` macro.");
  const auto pair_then_linear = [] {
    return std::vector<AnyModule>{AnyModule(Pair()), AnyModule(torch::nn::Linear(2, 2))};
  };
  Pipeline middle(Group(), pair_then_linear());
  CHECK(refusal([&] {
          middle.forward(torch::ones({2, 2}));
        }) == place +
                  "Expected argument #0 to be of type at::Tensor, but received value of type std::pair<at::Tensor, "
                  "at::Tensor>");
  Pipeline last(Group(), std::vector<AnyModule>{AnyModule(Pair())});
  CHECK(refusal([&] {
          last.forward(torch::ones({2, 2}));
        }) ==
        place + "The type of the return value is std::pair<at::Tensor, at::Tensor>, but you asked for type at::Tensor");
}

TEST_CASE("layers are modules that take and return one tensor") {
  using accelerate::pipeline::LayerModule;
  CHECK(LayerModule<torch::nn::LinearImpl>);
  CHECK(LayerModule<torch::nn::ConvTranspose2dImpl>);  // with a default argument
  CHECK(LayerModule<Block::ContainedType>);
  CHECK_FALSE(LayerModule<TwoInputsImpl>);
  CHECK_FALSE(LayerModule<PairImpl>);
  CHECK_FALSE(LayerModule<torch::nn::ModuleListImpl>);
  CHECK_FALSE(LayerModule<torch::nn::LSTMImpl>);
}

}  // namespace pipeline_testing

// SPDX-License-Identifier: Apache-2.0
// Wrong calls, layers that throw, and ranks that fail.
#include "tests/testing.hpp"
//
#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "accelerate/pipeline/layer_costs.hpp"
#include "tests/pipeline/models.hpp"
#include "tests/refusal.hpp"

namespace pipeline_testing {
namespace {

using accelerate::comm::run_threads;
using testing::refusal;

Sequential with_call(std::function<torch::Tensor(torch::Tensor)> call) {
  return filled(Sequential(torch::nn::Linear(3, 3), Call(std::move(call)), torch::nn::Linear(3, 3)));
}

torch::Tensor rows(int64_t count) { return waves({count, 3}, 1); }

/// The error texts of all ranks without their places, in the order of the ranks.
std::vector<std::string> texts_of_ranks(int64_t ranks, const std::function<void(const Group&)>& call) {
  std::vector<std::string> texts(static_cast<size_t>(ranks));
  run_threads(
      ranks,
      [&](const Group& group) {
        auto text = refusal([&] { call(group); });
        const auto end = text.find("] ");
        texts[static_cast<size_t>(group.rank())] = end == std::string::npos ? text : text.substr(end + 2);
      },
      std::chrono::seconds(2));
  return texts;
}

}  // namespace

TEST_CASE("a model that does not fit the ranks is refused on every rank") {
  CHECK(texts_of_ranks(4, [](const Group& group) { Pipeline(group, Sequential(torch::nn::Linear(1, 1))); }) ==
        std::vector<std::string>(4,
                                 "Pipeline: the model has 1 layers, the pipeline 4 stages; every stage needs a "
                                 "layer: use fewer ranks, or divide the layers"));
  CHECK(refusal([] { Pipeline(Group(), Sequential(nullptr)); }) == "Pipeline: the model is empty");
  CHECK(refusal([] {
          Pipeline({at::kCPU, at::kCPU}, mlp(), {.layers_per_stage = {4, 4}});
        }) ==
        "Pipeline: layers_per_stage is [4, 4], must be 2 numbers of at least 1 with the sum 9, the number of layers");
  CHECK(refusal([] {
          Pipeline({at::kCPU, at::kCPU}, mlp(), {.layer_costs = {1, 2}});
        }) == "Pipeline: there are 2 layer_costs, the model has 9 layers");
  CHECK(refusal([] { Pipeline(std::vector<at::Device>{}, mlp()); }) ==
        "Pipeline: the number of ranks is 0, must be at least 1");
}

TEST_CASE("ranks with another number of layers are named") {
  const auto texts = texts_of_ranks(2, [](const Group& group) {
    auto layers = mlp();
    if (group.rank() == 1) layers->push_back(torch::nn::Linear(3, 3));
    Pipeline(group, std::move(layers));
  });
  CHECK(texts[0].empty());
  CHECK(texts[1] == "Pipeline: this rank has 10 layers in 2 stages, rank 0 has 9 in 2; they must be equal.");
}

TEST_CASE("a batch without rows, a target of another batch, and a loss that is no number are refused") {
  Pipeline pipeline(Group(), with_call([](const torch::Tensor& x) { return x; }));
  CHECK(refusal([&] { pipeline.train_step({}, rows(2), squared_error); }) ==
        "Pipeline.train_step: the input is undefined, must be a tensor [rows, ...]");
  CHECK(refusal([&] { pipeline.forward(torch::tensor(1.0)); }) ==
        "Pipeline.forward: the input is a number, must be a tensor [rows, ...]");
  CHECK(refusal([&] { pipeline.forward(rows(0)); }) == "Pipeline: the batch has 0 rows, must have at least 1");
  CHECK(refusal([&] { pipeline.train_step(rows(4), rows(3), squared_error); }) ==
        "Pipeline.train_step: the target has 3 rows, the input has 4");
  CHECK(refusal([&] { pipeline.train_step(rows(4), {}, squared_error); }) ==
        "Pipeline.train_step: the target has no rows, the input has 4");
  const auto no_number = [](const torch::Tensor& output, const torch::Tensor& target) { return output - target; };
  CHECK(refusal([&] { pipeline.train_step(rows(4), rows(4), no_number); }) ==
        "Pipeline.train_step: stage 0, micro-batch 0, forward: Pipeline.train_step: the loss function returns 3 "
        "elements, must return the mean over the rows as one number");
  CHECK(pipeline.train_step(rows(4), rows(4), squared_error).defined());  // one process can continue
}

TEST_CASE("clipping refuses wrong numbers") {
  Pipeline pipeline(Group(), mlp());
  CHECK(refusal([&] { pipeline.clip_grad_norm_(-1); }) ==
        "Pipeline.clip_grad_norm_: max_norm is -1, must be at least 0");
  CHECK(refusal([&] { pipeline.clip_grad_norm_(1, 0); }) ==
        "Pipeline.clip_grad_norm_: norm_type is 0, must be positive");
}

TEST_CASE("a layer that throws is named with stage and micro-batch, and the pipeline refuses further steps") {
  const auto texts = texts_of_ranks(2, [](const Group& group) {
    auto net = with_call([calls = 0](const torch::Tensor& x) mutable {
      if (++calls == 3) throw std::runtime_error("no more\nsecond line");
      return x;
    });
    Pipeline pipeline(group, std::move(net), {.micro_batches = 4, .layers_per_stage = {1, 2}});
    const auto first = refusal([&] { pipeline.train_step(rows(8), rows(8), squared_error); });
    if (group.rank() == 1) {
      CHECK(first.ends_with("Pipeline.train_step: stage 1, micro-batch 2, forward: no more"));
      pipeline.train_step(rows(8), rows(8), squared_error);
    }
    throw accelerate::Error(accelerate::ErrorKind::peer, {}, "first", first);
  });
  CHECK_MESSAGE(texts[0].ends_with("Pipeline.train_step: stage 0, micro-batch 2: the gradient is not received from "
                                   "stage 1 on rank 1: a message ([2, 3] float64) cannot end: rank 1 has ended"),
                texts[0]);
  CHECK(texts[1] == "Pipeline.train_step: an earlier step of this pipeline failed on this rank; create a new pipeline");
}

TEST_CASE("ranks in different functions are named") {
  const auto texts = texts_of_ranks(2, [](const Group& group) {
    Pipeline pipeline(group, mlp());
    if (group.rank() == 0) {
      pipeline.forward(waves({4, 7}, 1));
    } else {
      pipeline.train_step({}, waves({4, 3}, 1), squared_error);
    }
  });
  CHECK(texts[1] ==
        "Pipeline.train_step: this rank calls train_step, rank 0 calls forward; all ranks must call the same functions "
        "in the same order.");
}

TEST_CASE("an output whose shape does not follow from the input is refused") {
  const auto texts = texts_of_ranks(2, [](const Group& group) {
    int64_t calls = 0;
    auto net = with_call([&](const torch::Tensor& x) { return ++calls > 2 ? x.repeat({1, 2}) : x; });
    Pipeline pipeline(group, std::move(net), {.micro_batches = 2, .layers_per_stage = {2, 1}});
    for (int64_t step = 0; step < 2; ++step) pipeline.train_step(rows(4), rows(4), squared_error);
  });
  CHECK(
      texts[0] ==
      "Pipeline.train_step: stage 0, micro-batch 0: the output is [2, 6] Double, was [2, 3] Double in an earlier step "
      "with the same sizes of the input; the shapes of activations must follow from the sizes of the input");
}

TEST_CASE("an activation with more dimensions than a message is refused") {
  const auto texts = texts_of_ranks(2, [](const Group& group) {
    std::vector<int64_t> sizes(17, 1);
    sizes.back() = 3;
    Pipeline pipeline(group, with_call([&](const torch::Tensor& x) { return x.reshape(sizes); }),
                      {.micro_batches = 1, .layers_per_stage = {2, 1}});
    pipeline.forward(rows(1));
  });
  CHECK(texts[0] == "Pipeline: an activation has 17 dimensions, at most 16 are supported");
}

TEST_CASE("measured costs change nothing and are positive") {
  using namespace torch::nn;
  Sequential layers(Linear(64, 64), BatchNorm1d(64), ReLU(ReLUOptions().inplace(true)), Dropout(0.5), Linear(64, 2));
  std::vector<torch::Tensor> before;
  for (const auto& tensor : layers->parameters()) before.push_back(tensor.detach().clone());
  for (const auto& tensor : layers->buffers()) before.push_back(tensor.clone());
  torch::manual_seed(3);
  const auto costs = accelerate::pipeline::measured_costs(layers, torch::ones({16, 64}));
  const auto drawn = torch::rand({4});
  torch::manual_seed(3);
  CHECK(drawn.equal(torch::rand({4})));
  CHECK(costs.size() == 5);
  for (const double cost : costs) CHECK(cost > 0);
  size_t i = 0;
  for (const auto& tensor : layers->parameters()) {
    CHECK(tensor.equal(before[i++]));
    CHECK_FALSE(tensor.grad().defined());
  }
  for (const auto& tensor : layers->buffers()) CHECK(tensor.equal(before[i++]));
  CHECK(refusal([&] {
          return accelerate::pipeline::measured_costs(layers, torch::ones({2, 64}), 0);
        }) == "measured_costs: repeats is 0, must be at least 1");
  CHECK(accelerate::pipeline::parameter_costs(layers) == std::vector<double>{4161, 129, 1, 1, 131});
}

TEST_CASE("the costs of rank 0 divide the layers on all ranks") {
  run_threads(2, [](const Group& group) {
    std::vector<double> costs(9, 1);
    costs[group.rank() == 0 ? 0 : 8] = 100;
    const Pipeline pipeline(group, mlp(), {.layer_costs = costs});
    CHECK(pipeline.layers_per_stage() == std::vector<int64_t>{1, 8});
  });
}

}  // namespace pipeline_testing

// SPDX-License-Identifier: Apache-2.0
// Compiles and runs the C++ blocks of the page about tensor parallelism, on ranks that are threads.
#include "tests/testing.hpp"
//
#include "accelerate/accelerate.hpp"
#include "accelerate/comm/group.hpp"
#include "accelerate/tensor_parallel/attention.hpp"
#include "accelerate/tensor_parallel/linear.hpp"
#include "accelerate/tensor_parallel/plan.hpp"

namespace parallelism_page {

// block: docs/how_to/tensor_parallel.md: Write a split model

/// Blocks of two linear layers in a Sequential each.
struct BlocksImpl : torch::nn::Module {
  BlocksImpl() {
    for (int i = 0; i < 2; ++i) {
      blocks->push_back(torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::ReLU(), torch::nn::Linear(8, 4)));
    }
  }
  torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
};
TORCH_MODULE(Blocks);

}  // namespace parallelism_page

TEST_CASE("the split block of the page has a whole output with gradients") {
  accelerate::comm::run_threads(2, [](const accelerate::comm::Group& group) {
    const auto block = std::make_shared<parallelism_page::BlockImpl>(group);
    const auto x = torch::ones({3, 1, 768});
    block->forward(x).sum().backward();
    CHECK(block->up->weight.size(0) == 3072 / 2);
    CHECK(block->up->weight.grad().defined());
  });
}

TEST_CASE("the plan of the page splits an existing model") {
  accelerate::comm::run_threads(2, [](const accelerate::comm::Group& group) {
    parallelism_page::Blocks net;
    // block: docs/how_to/tensor_parallel.md: Split an existing model
    CHECK(net->named_parameters()["blocks.1.0.weight"].size(0) == 4);
    CHECK(net->named_parameters()["blocks.0.2.weight"].size(1) == 4);
  });
}

TEST_CASE("the Accelerator of the page has a mesh of 2 x 2 ranks") {
  accelerate::simulate(4, [] {
    using parallelism_page::BlockImpl;
    // block: docs/how_to/tensor_parallel.md: Use it with data parallelism
    CHECK(accelerator.tensor_parallel_rank() == accelerator.process_index() % 2);
    CHECK(accelerator.data_parallel_rank() == accelerator.process_index() / 2);
    CHECK(block.up->weight.size(0) == 3072 / 2);
  });
}

TEST_CASE("the pipeline of the page has sharded stages") {
  accelerate::simulate(4, [] {
    using accelerate::Accelerator;
    constexpr int64_t stages = 2;
    // block: docs/how_to/pipeline_parallel.md: Divide the stages over data parallel ranks
    torch::nn::Sequential layers(torch::nn::Linear(4, 8), torch::nn::Linear(8, 4));
    const auto net =
        std::make_shared<accelerate::nn::Pipeline>(accelerator.pipeline_parallel_group(), std::move(layers));
    const auto model = accelerator.prepare(net);
    CHECK(accelerator.sharding_plan(model).find(" elements on 2 ranks") != std::string::npos);
  });
}

TEST_CASE("the sharded mesh of the page has a part of a layer on each rank") {
  accelerate::simulate(4, [] {
    // block: docs/how_to/tensor_parallel.md: Use it with sharding
    auto block = std::make_shared<parallelism_page::BlockImpl>(accelerator.tensor_parallel_group());
    const auto model = accelerator.prepare(block);
    CHECK(accelerator.sharding_plan(model).find(" elements on 2 ranks") != std::string::npos);
  });
}

// SPDX-License-Identifier: Apache-2.0
// Sparse gradients in pipelines, also on some data parallel ranks only.
#include "tests/testing.hpp"
//
#include <chrono>
#include <string>
#include <vector>

#include "tests/pipeline/prepared_training.hpp"

namespace {

using namespace pipeline_testing;
using accelerate::comm::run_threads;

const std::chrono::milliseconds limit = std::chrono::seconds(20);

/// Uses a sparse embedding on some data parallel ranks.
struct SometimesImpl : torch::nn::Module {
  explicit SometimesImpl(bool uses) : is_used(uses) {}
  torch::Tensor forward(const torch::Tensor& ids) {
    return is_used ? table(ids) : torch::ones({ids.size(0), 4}, torch::kDouble) + other;
  }
  bool is_used;
  torch::nn::Embedding table =
      register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 4).sparse(true)));
  torch::Tensor other = register_parameter("other", torch::zeros({4}, torch::kDouble));
};
TORCH_MODULE(Sometimes);

TEST_CASE("a sparse gradient on some data parallel ranks of a pipeline becomes dense, and is the mean") {
  for (const int64_t stages : {1, 2}) {
    for (const std::vector<bool>& uses :
         {std::vector<bool>{true, false}, {false, true}, {true, true}, {false, false}}) {
      CAPTURE(stages);
      run_threads(
          2 * stages,
          [&](const Group& world) {
            Accelerator accelerator = on_mesh(world, {.dp_replicate_size = 2, .pp_size = stages});
            const auto make = [&](size_t rank) {
              return filled(Sequential(Sometimes(uses[rank]), torch::nn::Linear(4, 3)));
            };
            const auto own = static_cast<size_t>(accelerator.data_parallel_rank());
            const auto net = std::make_shared<Pipeline>(accelerator.pipeline_parallel_group(), make(own),
                                                        PipelineOptions{.micro_batches = 2});
            const auto model = accelerator.prepare(net);
            const auto ids = [](size_t rank) { return torch::tensor({1, 2, 2, 5}) - static_cast<int64_t>(rank); };
            const auto target = waves({4, 3}, 2);
            model->train_step(ids(own), target, squared_error);
            std::vector<torch::OrderedDict<std::string, torch::Tensor>> expected;
            for (size_t rank = 0; rank < 2; ++rank) {
              auto whole = make(rank);
              (squared_error(whole->forward(ids(rank)), target) / 2).backward();
              expected.push_back(whole->named_parameters());
            }
            for (const auto& item : net->named_parameters()) {
              CAPTURE(item.key());
              torch::Tensor sum = torch::zeros_like(item.value());
              bool is_used = false;
              for (const auto& one : expected) {
                const auto gradient = one[item.key()].grad();
                if (gradient.defined()) sum = sum + gradient.to_dense();
                is_used = is_used || gradient.defined();
              }
              REQUIRE(item.value().grad().defined() == is_used);
              if (is_used) CHECK(item.value().grad().allclose(sum, 1e-12, 1e-12));
            }
          },
          limit);
    }
  }
}

TEST_CASE("a sparse embedding in one stage, also tied to the head, trains like one process") {
  for (const bool tied : {false, true}) {
    CAPTURE(tied);
    const auto make = [&] {
      torch::nn::Embedding table(torch::nn::EmbeddingOptions(10, 6).sparse(true));
      if (tied) return filled(Sequential(table, torch::nn::Linear(6, 6), TiedHead(table->weight)));
      return filled(Sequential(table, torch::nn::Linear(6, 6), torch::nn::Linear(6, 10)));
    };
    run_threads(
        2,
        [&](const Group& world) {
          Pipeline net(world, make(), {.micro_batches = 2});
          auto whole = make();
          torch::optim::SGD optimizer(parameters_of(net), 0.1), stock(parameters_of(*whole), 0.1);
          const auto ids = torch::tensor({1, 2, 2, 5, 9});
          const auto target = waves({5, 10}, 2);
          for (int step = 0; step < 3; ++step) {
            optimizer.zero_grad();
            net.train_step(ids, target, squared_error);
            const double norm = net.clip_grad_norm_(0.01).item<double>();
            optimizer.step();
            stock.zero_grad();
            squared_error(whole->forward(ids), target).backward();
            std::vector<torch::Tensor> dense;
            for (auto& parameter : parameters_of(*whole)) {
              parameter.mutable_grad() = parameter.grad().to_dense();
            }
            const double expected = torch::nn::utils::clip_grad_norm_(parameters_of(*whole), 0.01);
            stock.step();
            CHECK(norm == doctest::Approx(expected).epsilon(1e-12));
          }
          const auto expected = whole->named_parameters();
          for (const auto& item : net.named_parameters()) {
            CAPTURE(item.key());
            CHECK(item.value().allclose(expected[item.key()], 1e-12, 1e-12));
          }
        },
        limit);
  }
}

}  // namespace

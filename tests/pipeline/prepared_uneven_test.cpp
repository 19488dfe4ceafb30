// SPDX-License-Identifier: Apache-2.0
// Prepared pipelines with batches of different sizes on the data parallel ranks.
#include "tests/testing.hpp"
//
#include <chrono>
#include <string>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/nn/sync_batch_norm.hpp"
#include "accelerate/pipeline/split.hpp"
#include "tests/pipeline/prepared_training.hpp"
#include "tests/refusal.hpp"

namespace {

using namespace pipeline_testing;
using accelerate::comm::run_threads;
using accelerate::nn::SyncBatchNorm;
using torch::nn::BatchNorm1d;
using torch::nn::BatchNormOptions;

const std::chrono::milliseconds soon = std::chrono::seconds(20);

template <typename Norm>
Sequential normalised_layers() {
  return filled(Sequential(torch::nn::Linear(4, 5), Norm(BatchNormOptions(5)), torch::nn::Tanh(),
                           torch::nn::Linear(5, 5), Norm(BatchNormOptions(5)), torch::nn::Linear(5, 3)));
}

/// Gradients of one process: micro-batch i of all ranks is one batch for BatchNorm, and each rank counts its own mean.
void backward_of_all_ranks(Sequential& layers, const std::vector<torch::Tensor>& inputs,
                           const std::vector<torch::Tensor>& targets, int64_t micro_batches) {
  std::vector<std::vector<torch::Tensor>> in, out;
  for (size_t rank = 0; rank < inputs.size(); ++rank) {
    const auto rows = accelerate::pipeline::micro_batch_rows(inputs[rank].size(0), micro_batches);
    in.push_back(inputs[rank].split_with_sizes(rows));
    out.push_back(targets[rank].split_with_sizes(rows));
  }
  for (size_t i = 0; i < in[0].size(); ++i) {
    std::vector<torch::Tensor> together;
    for (const auto& parts : in) together.push_back(parts[i]);
    const auto output = layers->forward(torch::cat(together));
    int64_t begin = 0;
    torch::Tensor loss = torch::zeros({}, torch::kDouble);
    for (size_t rank = 0; rank < in.size(); ++rank) {
      const int64_t rows = in[rank][i].size(0);
      const double share = static_cast<double>(rows) / static_cast<double>(inputs[rank].size(0));
      loss =
          loss + squared_error(output.narrow(0, begin, rows), out[rank][i]) * (share / static_cast<double>(in.size()));
      begin += rows;
    }
    loss.backward();
  }
}

void check_gradients(const Pipeline& net, const torch::nn::Module& whole) {
  const auto expected = whole.named_parameters();
  for (const auto& item : net.named_parameters()) {
    CAPTURE(item.key());
    CHECK(item.value().grad().allclose(expected[item.key()].grad(), 1e-12, 1e-12));
  }
}

TEST_CASE("SyncBatchNorm in stages normalises the micro-batches of all data parallel ranks, also with uneven rows") {
  for (const int64_t stages : {1, 2}) {
    for (const std::vector<int64_t>& rows : {std::vector<int64_t>{5, 3}, {2, 9}, {4, 4}}) {
      CAPTURE(stages);
      run_threads(
          2 * stages,
          [&](const Group& world) {
            Accelerator accelerator = on_mesh(world, {.dp_replicate_size = 2, .pp_size = stages});
            const auto net =
                std::make_shared<Pipeline>(accelerator.pipeline_parallel_group(), normalised_layers<SyncBatchNorm>(),
                                           PipelineOptions{.micro_batches = 2});
            const auto model = accelerator.prepare(net);
            std::vector<torch::Tensor> inputs, targets;
            for (size_t rank = 0; rank < 2; ++rank) {
              inputs.push_back(waves({rows[rank], 4}, static_cast<double>(rank)));
              targets.push_back(waves({rows[rank], 3}, static_cast<double>(rank) + 5));
            }
            const auto own = static_cast<size_t>(accelerator.data_parallel_rank());
            model->train_step(inputs[own], targets[own], squared_error);
            Sequential whole = normalised_layers<BatchNorm1d>();
            backward_of_all_ranks(whole, inputs, targets, 2);
            check_gradients(*net, *whole);
            const auto buffers = whole->named_buffers();
            for (const auto& item : net->named_buffers()) {
              CAPTURE(item.key());
              CHECK(item.value().allclose(buffers[item.key()], 1e-12, 1e-12));
            }
          },
          soon);
    }
  }
}

TEST_CASE("SyncBatchNorm refuses data parallel ranks with different numbers of micro-batches, on all ranks") {
  for (const int64_t stages : {1, 2}) {
    CAPTURE(stages);
    run_threads(
        2 * stages,
        [&](const Group& world) {
          Accelerator accelerator = on_mesh(world, {.dp_replicate_size = 2, .pp_size = stages});
          const auto net =
              std::make_shared<Pipeline>(accelerator.pipeline_parallel_group(), normalised_layers<SyncBatchNorm>(),
                                         PipelineOptions{.micro_batches = 4});
          const auto model = accelerator.prepare(net);
          const int64_t rows = accelerator.data_parallel_rank() == 0 ? 8 : 3;
          const std::string reason =
              "Pipeline: the batch of data parallel rank 0 has 4 micro-batches, that of rank 1 has 3, and "
              "SyncBatchNorm "
              "needs the same number on all; give each rank at least as many rows as PipelineOptions::micro_batches";
          CHECK(testing::refusal([&] {
                  model->train_step(waves({rows, 4}, 1), waves({rows, 3}, 2), squared_error);
                }).find(reason) != std::string::npos);
          if (stages > 1) return;  // a pipeline over several ranks cannot be used after an error
          CHECK(testing::refusal([&] { model->forward(waves({rows, 4}, 1)); }).find(reason) != std::string::npos);
          model->train_step(waves({rows + 1, 4}, 1), waves({rows + 1, 3}, 2), squared_error);
          net->eval();
          CHECK(model->forward(waves({rows, 4}, 1)).size(0) == rows);
        },
        soon);
  }
}

TEST_CASE("without SyncBatchNorm, data parallel ranks may have different numbers of micro-batches") {
  run_threads(
      2,
      [&](const Group& world) {
        Accelerator accelerator = on_mesh(world, {.dp_replicate_size = 2});
        const auto net = std::make_shared<Pipeline>(accelerator.pipeline_parallel_group(), mlp(),
                                                    PipelineOptions{.micro_batches = 4});
        const auto model = accelerator.prepare(net);
        const int64_t rows = accelerator.data_parallel_rank() == 0 ? 8 : 3;
        model->train_step(waves({rows, 7}, 1), waves({rows, 3}, 2), squared_error);
        auto whole = mlp();
        for (const int64_t each : {8, 3}) {
          (squared_error(whole->forward(waves({each, 7}, 1)), waves({each, 3}, 2)) / 2).backward();
        }
        check_gradients(*net, *whole);
      },
      soon);
}

}  // namespace

// SPDX-License-Identifier: Apache-2.0
// Models over several devices: stages in one process, and tensor parallel layers over ranks.
#include "accelerate/pipeline/pipeline.hpp"
#include "accelerate/tensor_parallel/embedding.hpp"
#include "accelerate/tensor_parallel/group_functions.hpp"
#include "accelerate/tensor_parallel/layer_norm.hpp"
#include "accelerate/tensor_parallel/linear.hpp"
#include "tests/checkpoint/folder.hpp"
#include "tests/stand_in/ranks.hpp"

using accelerate::Accelerator;
using accelerate::nn::Pipeline;
using stand_in::Tensors;
using torch::nn::Sequential;

namespace {

Tensors pipeline_on(const std::vector<at::Device>& devices) {
  Pipeline net(devices, stand_in::made_equal([] {
                 return Sequential(torch::nn::Linear(6, 16), torch::nn::ReLU(), torch::nn::Linear(16, 16),
                                   torch::nn::Tanh(), torch::nn::Linear(16, 3));
               }),
               {.micro_batches = 3, .layers_per_stage = {3, 2}});
  torch::optim::SGD sgd(net.parameters(), stand_in::kMomentum);
  const at::Tensor rows = torch::linspace(-1, 1, 60).view({10, 6}), targets = torch::linspace(1, -1, 30).view({10, 3});
  const auto loss = [](const at::Tensor& output, const at::Tensor& target) {
    return (output - target).square().mean();
  };
  Tensors all;
  for (int64_t step = 0; step < 4; ++step) {
    sgd.zero_grad();
    all.push_back(net.train_step(rows.to(devices.front()), targets.to(devices.back()), loss));
    all.push_back(net.clip_grad_norm_(0.5));
    sgd.step();
  }
  for (const at::Tensor& parameter : net.parameters()) all.push_back(parameter);
  CHECK(net.parameters().front().device() == devices.front());
  CHECK(net.parameters().back().device() == devices.back());
  net.eval();
  all.push_back(net.forward(rows.to(devices.front())));
  return stand_in::to_cpu(all);
}

/// Trains a prepared Pipeline on the devices and saves it; a second one loads the checkpoint and continues.
Tensors prepared_on(const std::vector<at::Device>& devices) {
  accelerate::AcceleratorOptions options;
  options.device = devices.front().str();
  Accelerator accelerator(options);
  const testing::SharedFolder folder;
  Tensors all;
  for (const bool is_loaded : {false, true}) {
    auto net = std::make_shared<Pipeline>(devices, stand_in::made_equal([] {
                                            return Sequential(torch::nn::Flatten(), torch::nn::Linear(36, 16),
                                                              torch::nn::ReLU(), torch::nn::Linear(16, 5));
                                          }),
                                          accelerate::PipelineOptions{.micro_batches = 2, .layers_per_stage = {3, 1}});
    torch::optim::AdamW adam(net->parameters(), 1e-2);
    auto [model, optimizer, loader] = accelerator.prepare(net, adam, stand_in::small_loader(24, 4));
    if (is_loaded) accelerator.load_state(folder.path / "c");
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      all.push_back(model->train_step(images, labels, stand_in::loss_of));
      all.push_back(accelerator.clip_grad_norm_(model, 0.5));
      optimizer.step();
    }
    if (!is_loaded) accelerator.save_state(folder.path / "c");
    for (const at::Tensor& parameter : net->parameters()) all.push_back(parameter);
    CHECK(net->parameters().front().device() == devices.front());
    CHECK(net->parameters().back().device() == devices.back());
    accelerator.free_memory();
  }
  return stand_in::to_cpu(all);
}

void check_same_bits(const Tensors& found, const Tensors& expected) {
  REQUIRE(found.size() == expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    CAPTURE(i);
    CHECK(at::equal(found[i], expected[i]));
  }
}

/// An embedding and a block; with `splits_sequence` the norm has a part of the sequence.
struct SplitNetImpl : torch::nn::Module {
  SplitNetImpl(const accelerate::comm::Group& the_group, bool the_splits_sequence)
      : group(the_group), splits_sequence(the_splits_sequence) {
    const std::optional<int64_t> dim = splits_sequence ? std::optional<int64_t>(0) : std::nullopt;
    using namespace accelerate::nn;
    embed =
        register_module("embed", VocabParallelEmbedding(VocabParallelEmbeddingOptions(8, 6).sequence_dim(dim), group));
    norm = register_module("norm", SequenceParallelLayerNorm(torch::nn::LayerNormOptions({6}),
                                                             splits_sequence ? group : accelerate::comm::Group()));
    up = register_module("up", ColumnParallelLinear(ColumnParallelLinearOptions(6, 12).sequence_dim(dim), group));
    down = register_module("down", RowParallelLinear(RowParallelLinearOptions(12, 6).sequence_dim(dim), group));
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = embed(ids);
    x = x + down(torch::relu(up(norm(x))));
    return splits_sequence ? accelerate::nn::gather_from_group(x, 0, group) : x;
  }
  accelerate::comm::Group group;
  bool splits_sequence;
  accelerate::nn::VocabParallelEmbedding embed{nullptr};
  accelerate::nn::SequenceParallelLayerNorm norm{nullptr};
  accelerate::nn::ColumnParallelLinear up{nullptr};
  accelerate::nn::RowParallelLinear down{nullptr};
};
TORCH_MODULE(SplitNet);

Tensors trained(Accelerator& accelerator, bool splits_sequence) {
  auto net = stand_in::made_equal([&] { return SplitNet(accelerator.tensor_parallel_group(), splits_sequence); });
  torch::optim::SGD sgd(net->parameters(), stand_in::kMomentum);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  Tensors all;
  for (int64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const at::Tensor ids =
        (torch::arange(8).view({4, 2}) + step + accelerator.data_parallel_rank()).remainder(8).to(accelerator.device());
    const at::Tensor loss = model(ids).square().mean();
    accelerator.backward(loss);
    all.push_back(accelerator.clip_grad_norm_(net->parameters(), 0.1));
    optimizer.step();
    all.push_back(loss.detach());
  }
  for (const at::Tensor& parameter : net->parameters()) all.push_back(parameter);
  return all;
}

}  // namespace

TEST_CASE("stages on two devices of one process train to the CPU's bits" * stand_in::needs_stand_in()) {
  const Tensors expected = pipeline_on({at::kCPU, at::kCPU});
  stand_in::at_every_pace([&] { check_same_bits(pipeline_on({stand_in::device(0), stand_in::device(1)}), expected); });
}

TEST_CASE("prepared stages on two devices of one process train and resume to the CPU's bits" *
          stand_in::needs_stand_in()) {
  const Tensors expected = prepared_on({at::kCPU, at::kCPU});
  stand_in::at_every_pace([&] { check_same_bits(prepared_on({stand_in::device(0), stand_in::device(1)}), expected); });
}

TEST_CASE("tensor parallel layers train on the device as on the CPU" * stand_in::needs_stand_in()) {
  for (const bool splits_sequence : {false, true}) {
    for (const int64_t ranks : {2, 4}) {
      CAPTURE(splits_sequence);
      CAPTURE(ranks);
      accelerate::AcceleratorOptions options;
      options.parallelism_config = {{.dp_replicate_size = ranks / 2, .tp_size = 2}};
      const auto body = [&](Accelerator& accelerator) { return trained(accelerator, splits_sequence); };
      options.device = "cpu";
      const auto expected = stand_in::results(ranks, body, options);
      options.device = stand_in::device_name();
      stand_in::at_every_pace(
          [&] {
            const auto found = stand_in::results(ranks, body, options);
            for (size_t rank = 0; rank < expected.size(); ++rank) {
              REQUIRE(found[rank].size() == expected[rank].size());
              for (size_t i = 0; i < expected[rank].size(); ++i) {
                CAPTURE(rank);
                CAPTURE(i);
                // Sums over the ranks may have another order than on the CPU.
                CHECK(at::allclose(found[rank][i].to(at::kDouble), expected[rank][i].to(at::kDouble), 1e-6, 1e-6));
              }
            }
          },
          100);
    }
  }
}

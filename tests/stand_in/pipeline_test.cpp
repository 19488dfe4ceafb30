// SPDX-License-Identifier: Apache-2.0
// Pipelines on the device give the CPU's results bit for bit and have no races, whichever stream is slow.
#include "accelerate/pipeline/pipeline.hpp"

#include <functional>
#include <memory>
#include <utility>

#include "tests/checkpoint/folder.hpp"
#include "tests/stand_in/ranks.hpp"

using accelerate::Accelerator;
using accelerate::nn::Pipeline;
using stand_in::Tensors;
using torch::nn::Sequential;

namespace {

using Body = std::function<Tensors(Accelerator&)>;

/// Runs on 1, 2 and 4 ranks: one stage, two stages, and two pipelines of two stages.
void same_on_meshes(const Body& body, accelerate::AcceleratorOptions options = {}) {
  for (const int64_t ranks : {1, 2, 4}) {
    options.parallelism_config = {{.dp_replicate_size = ranks == 4 ? 2 : 1, .pp_size = ranks == 1 ? 1 : 2}};
    stand_in::same_as_on_cpu(body, options, {ranks}, 100);
  }
}

Sequential layers_of_images() {
  return Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 3, 3).padding(1)), torch::nn::BatchNorm2d(3),
                    torch::nn::ReLU(), torch::nn::Flatten(), torch::nn::Linear(3 * 6 * 6, 16), torch::nn::ReLU(),
                    torch::nn::Linear(16, 5));
}

/// Only operators with equal autocast lists on every device.
Sequential layers_for_autocast() {
  return Sequential(torch::nn::Flatten(), torch::nn::Linear(36, 16), torch::nn::ReLU(), torch::nn::Linear(16, 16),
                    torch::nn::ReLU(), torch::nn::Linear(16, 5));
}

struct PipelineJob {
  explicit PipelineJob(Accelerator& accelerator, const std::function<Sequential()>& make = layers_of_images)
      : net(std::make_shared<Pipeline>(accelerator.pipeline_parallel_group(), stand_in::made_equal(make),
                                       accelerate::PipelineOptions{.micro_batches = 3})),
        sgd(net->parameters(), stand_in::kMomentum),
        prepared(accelerator.prepare(net, sgd, stand_in::small_loader(24, 4))) {}

  std::shared_ptr<Pipeline> net;
  torch::optim::SGD sgd;
  decltype(std::declval<Accelerator&>().prepare(std::declval<std::shared_ptr<Pipeline>&>(),
                                                std::declval<torch::optim::SGD&>(),
                                                std::declval<accelerate::data::Loader>())) prepared;
};

void train(Accelerator& accelerator, PipelineJob& job, Tensors& seen) {
  auto& [model, optimizer, loader] = job.prepared;
  for (auto& [images, labels] : loader) {
    optimizer.zero_grad();
    seen.push_back(model->train_step(images, labels, stand_in::loss_of));
    seen.push_back(accelerator.clip_grad_norm_(model, 0.1));
    optimizer.step();
  }
}

Tensors trained(Accelerator& accelerator, const std::function<Sequential()>& make) {
  PipelineJob job(accelerator, make);
  Tensors all;
  train(accelerator, job, all);
  for (const auto& parameter : job.net->parameters()) {
    CHECK(parameter.device() == accelerator.device());
    all.push_back(parameter);
  }
  for (const auto& buffer : job.net->buffers()) all.push_back(buffer);
  job.net->eval();
  const auto output = std::get<0>(job.prepared)(stand_in::small_data(6).first);
  if (output.defined()) all.push_back(output);
  return all;
}

}  // namespace

TEST_CASE("a prepared pipeline trains and evaluates on the device to the CPU's bits") {
  same_on_meshes([](Accelerator& accelerator) { return trained(accelerator, layers_of_images); });
}

TEST_CASE("a prepared pipeline in bf16 and in fp16 with a scaled loss trains on the device as on the CPU") {
  for (const auto precision : {accelerate::Precision::bf16, accelerate::Precision::fp16}) {
    same_on_meshes([](Accelerator& accelerator) { return trained(accelerator, layers_for_autocast); },
                   stand_in::with_precision(precision));
  }
}

TEST_CASE("checkpoints of stages on the device continue to the CPU's bits, and the whole model is gathered") {
  same_on_meshes([](Accelerator& accelerator) -> Tensors {
    const testing::SharedFolder folder(accelerator.group());
    Tensors all;
    {
      PipelineJob job(accelerator);
      train(accelerator, job, all);
      accelerator.save_state(folder.path / "c");
      for (const auto& item : Accelerator::get_state_dict(std::get<0>(job.prepared))) all.push_back(item.value());
      accelerator.free_memory();
    }
    PipelineJob job(accelerator);
    accelerator.load_state(folder.path / "c");
    train(accelerator, job, all);
    for (const auto& parameter : job.net->parameters()) all.push_back(parameter);
    return all;
  });
}

// SPDX-License-Identifier: Apache-2.0
// A Trainer on the device: training, evaluation, prediction and the best model give the CPU's bits, without a race.
#include "accelerate/trainer/trainer.hpp"
//
#include "tests/stand_in/ranks.hpp"

using accelerate::Inputs;
using stand_in::SmallNet;
using stand_in::Tensors;

namespace {

struct SmallTrainer : accelerate::Trainer<SmallNet> {
  using Trainer::Trainer;
  LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
    const bool there = inputs["x"].device() == accelerator().device();
    CHECK(there);
    const auto outputs = model(inputs["x"]);
    return {torch::nll_loss(outputs, inputs["labels"]), outputs};
  }
};

accelerate::trainer::Dataset small_images() {
  auto [images, labels] = stand_in::small_data(22);
  return accelerate::data::map(accelerate::data::memory_source(images, labels),
                               [](const accelerate::data::Batch& batch) {
                                 return Inputs{{"x", batch.data}, {"labels", batch.target}};
                               });
}

}  // namespace

TEST_CASE("a Trainer's training, evaluations, predictions and best model equal the CPU's") {
  stand_in::same_as_on_cpu([](accelerate::Accelerator& accelerator) -> Tensors {
    const auto net = stand_in::made_equal([] { return SmallNet(); });
    accelerator.wait_for_everyone();  // a Trainer seeds the generator that another rank may still draw its model from
    SmallTrainer trainer(net,
                         {.per_device_train_batch_size = 3,
                          .per_device_eval_batch_size = 4,
                          .num_train_epochs = 2,
                          .gradient_accumulation_steps = 2,
                          .learning_rate = 1e-2,
                          .eval_strategy = accelerate::IntervalStrategy::epoch,
                          .disable_tqdm = true},
                         {.train_dataset = small_images(),
                          .eval_dataset = small_images(),
                          .callbacks = {std::make_shared<accelerate::BestModelCallback>()},
                          .accelerator = {.device = accelerator.device().str()}});
    trainer.remove_callback<accelerate::PrinterCallback>();
    trainer.train();
    const auto predicted = trainer.predict(small_images());
    CHECK(predicted.predictions.device().is_cpu());
    auto all = stand_in::state_of(trainer.model());
    all.push_back(predicted.predictions);
    all.push_back(torch::tensor(*trainer.state().best_metric, at::kDouble));
    return all;
  });
}

TEST_CASE("the memory of a training is logged: optimizer state remains, activations increase the peak") {
  stand_in::on_devices(1, [](accelerate::Accelerator& accelerator) {
    SmallTrainer trainer(
        SmallNet(),
        {.per_device_train_batch_size = 3, .num_train_epochs = 1, .disable_tqdm = true, .skip_memory_metrics = false},
        {.train_dataset = small_images(), .accelerator = {.device = accelerator.device().str()}});
    trainer.remove_callback<accelerate::PrinterCallback>();
    const auto metrics = trainer.train().metrics;
    int64_t bytes = 0;
    for (const auto& parameter : trainer.parameters()) bytes += static_cast<int64_t>(parameter.nbytes());
    CHECK(metrics.at("train_mem_gpu_alloc_delta") >= 2.0 * static_cast<double>(bytes));  // AdamW's two averages
    CHECK(metrics.at("train_mem_gpu_peaked_delta") > 0);
    CHECK(metrics.contains("train_mem_cpu_alloc_delta"));
  });
}

// SPDX-License-Identifier: Apache-2.0
// trainer: BasicNet on MNIST with accelerate::Trainer as the loop. Runs on one process, many processes and GPUs.
#include <accelerate/trainer/trainer.hpp>
#include <string>
#include <utility>
#include <vector>

#include "basic_net.hpp"
#include "command_line.hpp"

namespace data = accelerate::data;

namespace {

using Example = std::pair<torch::Tensor, int64_t>;

/// A user-defined data set: numbered examples, each an image [1, 28, 28] and its label.
class Digits {
 public:
  Digits(const std::string& folder, data::Split split) {
    const auto source = data::mnist(folder, {}, split).source();
    const auto all = source->read(torch::arange(source->size()));
    images_ = all.data;
    labels_ = all.target;
  }
  [[nodiscard]] int64_t size() const { return images_.size(0); }
  [[nodiscard]] Example get(int64_t i) const { return {images_[i], labels_[i].item<int64_t>()}; }

 private:
  torch::Tensor images_, labels_;
};

accelerate::Inputs collate(const std::vector<Example>& examples) {
  std::vector<torch::Tensor> images;
  std::vector<int64_t> labels;
  for (const auto& [image, label] : examples) {
    images.push_back(image);
    labels.push_back(label);
  }
  return {{"x", torch::stack(images)}, {"labels", torch::tensor(labels)}};
}

struct DigitTrainer : accelerate::Trainer<BasicNet> {
  using Trainer::Trainer;

  LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
    const auto outputs = model(inputs["x"]);
    return {torch::nll_loss(outputs, inputs["labels"]), outputs};
  }
};

accelerate::Metrics accuracy(const accelerate::EvalPrediction& prediction) {
  const auto right = prediction.predictions.argmax(1).eq(prediction.label_ids["labels"]);
  return {{"accuracy", right.to(torch::kDouble).mean().item<double>()}};
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder = "examples/data/mnist";
  accelerate::TrainingArguments arguments{
      .per_device_train_batch_size = 64,
      .per_device_eval_batch_size = 1000,
      .num_train_epochs = 1,
      .learning_rate = 1e-3,
      .lr_scheduler_type = accelerate::SchedulerType::constant,
      .eval_strategy = accelerate::IntervalStrategy::epoch,
      .logging_steps = 50,
      .seed = 1,
  };
  CLI::App app("Trains BasicNet on MNIST with accelerate::Trainer");
  app.add_option("--data-dir", folder, "Folder with the four IDX files, gzipped or not")->capture_default_str();
  app.add_option("--num_train_epochs", arguments.num_train_epochs, "Passes over the training set")
      ->capture_default_str();
  app.add_option("--learning_rate", arguments.learning_rate, "AdamW's")->capture_default_str();
  app.add_option("--max_grad_norm", arguments.max_grad_norm, "Maximum norm of the gradients; 0 disables clipping")
      ->capture_default_str();
  app.add_option("--seed", arguments.seed, "Seed of weights, order and dropout")->capture_default_str();
  return command_line::run(app, argc, argv, [&] {
    accelerate::set_seed(arguments.seed);
    DigitTrainer trainer(BasicNet(), arguments,
                         {.train_dataset = data::dataset_source(Digits(folder, data::Split::train), collate),
                          .eval_dataset = data::dataset_source(Digits(folder, data::Split::test), collate),
                          .compute_metrics = accuracy});
    trainer.train();
    const auto metrics = trainer.evaluate();
    trainer.accelerator().on_main_process([&] { fmt::print("test accuracy {:.4f}\n", metrics.at("eval_accuracy")); });
  });
}

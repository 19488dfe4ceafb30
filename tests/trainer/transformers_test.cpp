// SPDX-License-Identifier: Apache-2.0
// Compares logs and evaluation times of a Trainer with transformers 5.24. The expected numbers are from its Trainer
// with the same weight, examples in order and SGD.
#include "tests/testing.hpp"
//
#include "tests/trainer/support.hpp"

using namespace trainer_testing;
using accelerate::SchedulerType;
using accelerate::simulate;

namespace {

/// Uses the examples in order, and SGD.
struct PlainTrainer : QuietTrainer {
  using QuietTrainer::QuietTrainer;
  std::shared_ptr<torch::optim::Optimizer> create_optimizer() override {
    return std::make_shared<torch::optim::SGD>(parameters(), arguments().learning_rate);
  }
  accelerate::data::LoaderOf<Inputs> get_train_dataloader() override {
    auto loader = QuietTrainer::get_train_dataloader();
    auto options = loader.options();
    options.shuffle = false;
    return {loader.source(), options};
  }
};

/// One float32 weight that begins at 0, with large gradients.
struct LargeTrainer : accelerate::Trainer<torch::nn::Linear> {
  using Trainer::Trainer;
  LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
    const auto outputs = model(inputs["x"].to(torch::kFloat).view({-1, 1})).view({-1});
    return {16 * torch::mse_loss(outputs, inputs["labels"].to(torch::kFloat)), outputs};
  }
};

struct PlainRun {
  accelerate::trainer::TrainOutput output;
  std::vector<Metrics> history;
  double weight;
};

PlainRun train_plainly(const TrainingArguments& arguments, int64_t examples, int64_t eval_examples = 0) {
  PlainTrainer trainer(
      OneWeight(), arguments,
      {.train_dataset = triples(examples), .eval_dataset = eval_examples > 0 ? triples(eval_examples) : nullptr});
  auto output = trainer.train();
  return {std::move(output), trainer.state().log_history, trainer.weight()};
}

std::vector<double> values_of(const std::vector<Metrics>& history, const std::string& name) {
  std::vector<double> values;
  for (const auto& entry : history) {
    if (entry.contains(name)) values.push_back(entry.at(name));
  }
  return values;
}

void check_close(const std::vector<double>& values, const std::vector<double>& expected) {
  REQUIRE(values.size() == expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    CAPTURE(i);
    CHECK(values[i] == doctest::Approx(expected[i]).epsilon(1e-6));  // transformers sums losses in float32
  }
}

}  // namespace

TEST_CASE("a step logs its learning rate, and its gradients' norm without clipping too") {
  const auto run = train_plainly({.per_device_train_batch_size = 1,
                                  .num_train_epochs = 1,
                                  .learning_rate = 0.1,
                                  .max_grad_norm = 0,
                                  .warmup_steps = 2,
                                  .logging_steps = 1},
                                 4);
  check_close(values_of(run.history, "learning_rate"), {0, 0.05, 0.1, 0.05});
  check_close(values_of(run.history, "grad_norm"), {0.375, 1.5, 3.290625, 5.191875});
  check_close(values_of(run.history, "loss"), {0.5625, 2.25, 4.812539100646973, 6.7388916015625});
  check_close({run.output.training_loss, run.weight}, {3.590982675552368, 0.66365625});
}

TEST_CASE("a step that fp16 skipped logs its rate, which the next step logs again") {
  torch::nn::Linear net(torch::nn::LinearOptions(1, 1).bias(false));
  torch::nn::init::zeros_(net->weight);
  LargeTrainer trainer(
      net,
      {.per_device_train_batch_size = 1,
       .num_train_epochs = 1,
       .learning_rate = 0.1,
       .warmup_steps = 4,
       .fp16 = true,
       .logging_steps = 1,
       .disable_tqdm = true},
      {.train_dataset = triples(3), .accelerator = {.grad_scaler = {.init_scale = 1e9, .backoff_factor = 1e-8}}});
  trainer.remove_callback<accelerate::PrinterCallback>();
  trainer.train();
  check_close(values_of(trainer.state().log_history, "learning_rate"), {0, 0, 0.025});
}

TEST_CASE("losses are means over the steps: a short last window counts as much as a full one") {
  const TrainingArguments arguments{.per_device_train_batch_size = 1,
                                    .num_train_epochs = 2,
                                    .gradient_accumulation_steps = 2,
                                    .learning_rate = 0.0,
                                    .logging_steps = 2};
  const auto run = train_plainly(arguments, 3);
  check_close(values_of(run.history, "loss"), {5.75, 5.75});  // means of (1 + 4) / 2 and 9
  check_close({run.output.training_loss, values_of(run.history, "train_loss").at(0)}, {5.75, 5.75});
  simulate(2, [&] { check_close({train_plainly(arguments, 6).output.training_loss}, {(7.5 / 4 + 15.25 / 2) / 2}); });
}

TEST_CASE("with eval_strategy steps the model is evaluated once after the last step") {
  TrainingArguments arguments{.per_device_train_batch_size = 1,
                              .num_train_epochs = 1,
                              .learning_rate = 0.1,
                              .eval_strategy = IntervalStrategy::steps,
                              .eval_steps = 2,
                              .logging_steps = 100};
  const auto run = train_plainly(arguments, 5, 4);
  check_close(values_of(run.history, "eval_loss"), {3.941682916147199, 3.6745129204622344, 3.6222039090251075});
  check_close({run.output.training_loss}, {3.560906982421875});
  const auto evaluations = [&](int64_t examples) {
    return values_of(train_plainly(arguments, examples, 4).history, "eval_loss").size();
  };
  CHECK(evaluations(4) == 2);
  arguments.eval_delay = 6;
  CHECK(evaluations(5) == 0);
  arguments.eval_delay = 5;
  CHECK(evaluations(5) == 1);
}

TEST_CASE("a warm-up that is longer than the training is truncated, under every schedule") {
  for (const auto type :
       {SchedulerType::linear, SchedulerType::cosine, SchedulerType::cosine_with_restarts, SchedulerType::polynomial,
        SchedulerType::constant_with_warmup, SchedulerType::inverse_sqrt}) {
    CAPTURE(accelerate::trainer::scheduler_type_name(type));
    const auto run = train_plainly({.per_device_train_batch_size = 1,
                                    .num_train_epochs = 1,
                                    .learning_rate = 0.1,
                                    .lr_scheduler_type = type,
                                    .warmup_steps = 6,
                                    .logging_steps = 1},
                                   3);
    check_close(values_of(run.history, "learning_rate"), {0, 0.1 / 6, 0.2 / 6});
    check_close({run.weight}, {0.04999998816341111});
  }
}

TEST_CASE("a warm-up may be as long as the training, under every schedule") {
  for (const auto type :
       {SchedulerType::linear, SchedulerType::cosine, SchedulerType::cosine_with_restarts, SchedulerType::polynomial}) {
    CAPTURE(accelerate::trainer::scheduler_type_name(type));
    const auto run = train_plainly({.per_device_train_batch_size = 1,
                                    .max_steps = 2,
                                    .learning_rate = 0.1,
                                    .lr_scheduler_type = type,
                                    .warmup_steps = 2,
                                    .logging_steps = 1},
                                   3);
    check_close(values_of(run.history, "learning_rate"), {0, 0.05});
  }
}

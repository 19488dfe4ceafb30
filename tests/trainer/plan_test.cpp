// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <cmath>

#include "accelerate/trainer/plan.hpp"

using namespace accelerate::trainer;

namespace {

TrainingSize of_mnist(int64_t accumulation = 1) {
  return {.examples = 14200,
          .batches = 111,
          .batch_of_all_ranks = 128,
          .gradient_accumulation_steps = accumulation,
          .trainable_parameters = 1199882};
}

}  // namespace

TEST_CASE("a plan counts optimizer steps, including an epoch's short last window") {
  const auto plan = plan_training({.per_device_train_batch_size = 64, .num_train_epochs = 2}, of_mnist(4));
  CHECK(plan.steps_per_epoch == 28);
  CHECK(plan.max_steps == 56);
  CHECK(plan.num_train_epochs == 2);
  CHECK(plan.total_batch_size() == 512);
}

TEST_CASE("a fraction of an epoch is rounded up to whole steps") {
  const auto plan = plan_training({.num_train_epochs = 1.5}, of_mnist());
  CHECK(plan.max_steps == 167);
  CHECK(plan.num_train_epochs == 2);
}

TEST_CASE("max_steps determines the number of epochs") {
  CHECK(plan_training({.max_steps = 111}, of_mnist()).num_train_epochs == 1);
  CHECK(plan_training({.max_steps = 112}, of_mnist()).num_train_epochs == 2);
  CHECK(plan_training({.max_steps = 112}, of_mnist()).max_steps == 112);
}

TEST_CASE("the warm-up is given in steps or as a fraction, which is rounded up") {
  CHECK(plan_training({.num_train_epochs = 1, .warmup_steps = 7}, of_mnist()).warmup_steps == 7);
  CHECK(plan_training({.num_train_epochs = 1, .warmup_ratio = 0.1}, of_mnist()).warmup_steps == 12);
  CHECK(plan_training({.max_steps = 10, .warmup_steps = 11}, of_mnist()).warmup_steps == 11);
}

TEST_CASE("a training set without a batch is refused") {
  CHECK_THROWS_WITH((void)plan_training({}, {.examples = 0}),
                    "train: the training set has 0 examples, which make no batch of 8 on every rank; give more, or a "
                    "smaller per_device_train_batch_size");
  CHECK_THROWS_WITH((void)plan_training({.dataloader_drop_last = true}, {.examples = 7}),
                    "train: the training set has 7 examples, which make no batch of 8 on every rank; give more, or a "
                    "smaller per_device_train_batch_size, or dataloader_drop_last = false");
}

TEST_CASE("the summary equals transformers'") {
  CHECK(summary(plan_training({.per_device_train_batch_size = 64, .num_train_epochs = 1}, of_mnist(2))) ==
        "***** Running training *****\n"
        "  Num examples = 14,200\n"
        "  Num Epochs = 1\n"
        "  Instantaneous batch size per device = 64\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 256\n"
        "  Gradient Accumulation steps = 2\n"
        "  Total optimization steps = 56\n"
        "  Number of trainable parameters = 1,199,882\n");
}

TEST_CASE("metrics are printed like a Python dictionary") {
  CHECK(text_of({}) == "{}");
  CHECK(text_of({{"epoch", 1}, {"learning_rate", 5e-5}, {"loss", 0.123456}, {"train_samples_per_second", 14200.36}}) ==
        "{'epoch': 1.0, 'learning_rate': 5e-05, 'loss': 0.1235, 'train_samples_per_second': 14200.4}");
  CHECK(text_of({{"a", std::nan("")}, {"b", -INFINITY}, {"c", 0}}) == "{'a': nan, 'b': -inf, 'c': 0.0}");
}

TEST_CASE("speed is reported in samples and steps per second") {
  CHECK(speed_metrics("train", 2.0, 300, 10) ==
        Metrics{{"train_runtime", 2.0}, {"train_samples_per_second", 150.0}, {"train_steps_per_second", 5.0}});
  CHECK(std::isfinite(speed_metrics("train", 0.0, 300, 10).at("train_steps_per_second")));
}

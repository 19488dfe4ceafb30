// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <torch/script.h>

#include "tests/trainer/support.hpp"

using namespace trainer_testing;
using accelerate::Accelerator;
using accelerate::simulate;

namespace {

/// The equivalent loop without a Trainer.
double by_hand(int64_t examples, int64_t accumulation) {
  Accelerator accelerator({.gradient_accumulation_steps = accumulation});
  OneWeight net;
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.1).weight_decay(0.0));
  accelerate::data::LoaderOf loader(triples(examples), {.batch_size = 2, .shuffle = true, .seed = 7});
  auto [model, optimizer, batches] = accelerator.prepare(net, adamw, loader);
  const int64_t steps = 2 * ((batches.size() + accumulation - 1) / accumulation);
  auto schedule = accelerator.prepare(accelerate::optim::get_cosine_schedule_with_warmup(adamw, 1, steps));
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (auto& inputs : batches) {
      auto window = accelerator.accumulate(model);
      accelerator.backward(torch::mse_loss(model(inputs["x"]), inputs["labels"]));
      accelerator.clip_grad_norm_(model, 0.5);
      optimizer.step();
      schedule.step();
      optimizer.zero_grad();
    }
  }
  return net->w.item<double>();
}

TrainingArguments like_by_hand(int64_t accumulation) {
  return {.per_device_train_batch_size = 2,
          .num_train_epochs = 2,
          .gradient_accumulation_steps = accumulation,
          .learning_rate = 0.1,
          .max_grad_norm = 0.5,
          .lr_scheduler_type = accelerate::SchedulerType::cosine,
          .warmup_steps = 1,
          .data_seed = 7};
}

/// Requests the end of the training after a step, on one rank.
class StopsOn : public TrainerCallback {
 public:
  StopsOn(int64_t rank, int64_t step) : rank_(rank), step_(step) {}
  void on_step_end(const TrainerContext& now, TrainerControl& control) override {
    if (now.trainer.accelerator().process_index() == rank_ && now.state.global_step == step_) {
      control.should_training_stop = true;
    }
  }

 private:
  int64_t rank_, step_;
};

}  // namespace

TEST_CASE("train() makes the steps of an equivalent loop, to the last bit") {
  for (const int64_t ranks : {1, 2}) {
    for (const int64_t accumulation : {1, 2}) {
      CAPTURE(ranks);
      CAPTURE(accumulation);
      simulate(ranks, [&] {
        const double expected = by_hand(14, accumulation);
        QuietTrainer trainer(OneWeight(), like_by_hand(accumulation), {.train_dataset = triples(14)});
        trainer.train();
        CHECK(trainer.weight() == expected);
      });
    }
  }
}

TEST_CASE("callbacks get the events in order") {
  auto recorder = std::make_shared<Recorder>();
  QuietTrainer trainer(OneWeight(),
                       {.per_device_train_batch_size = 1,
                        .num_train_epochs = 1,
                        .gradient_accumulation_steps = 2,
                        .eval_strategy = IntervalStrategy::epoch,
                        .logging_steps = 2},
                       {.train_dataset = triples(3), .eval_dataset = triples(8), .callbacks = {recorder}});
  trainer.train();
  CHECK(recorder->seen == Strings{"train_begin", "epoch_begin", "step_begin", "substep_end", "pre_optimizer_step",
                                  "optimizer_step", "step_end 1", "step_begin", "pre_optimizer_step", "optimizer_step",
                                  "step_end 2", "log", "epoch_end", "prediction_step", "log eval", "evaluate",
                                  "log train", "train_end"});
}

TEST_CASE("training ends after max_steps, within an epoch too, and counts its samples") {
  QuietTrainer trainer(OneWeight(), {.per_device_train_batch_size = 2, .max_steps = 5}, {.train_dataset = triples(6)});
  const auto output = trainer.train();
  CHECK(output.global_step == 5);
  CHECK(trainer.state().epoch == doctest::Approx(5.0 / 3));
  CHECK(trainer.state().num_train_epochs == 2);
  const double samples = output.metrics.at("train_samples_per_second") * output.metrics.at("train_runtime");
  CHECK(samples / (output.metrics.at("train_steps_per_second") * output.metrics.at("train_runtime")) ==
        doctest::Approx(2.0).epsilon(0.1));
}

TEST_CASE("the logged loss is the mean since the last log, over all ranks") {
  simulate(2, [] {
    // With a rate of 0 the weight stays 0, and the loss of an example is (3 x)^2.
    QuietTrainer trainer(
        OneWeight(),
        {.per_device_train_batch_size = 1, .num_train_epochs = 1, .learning_rate = 0.0, .logging_steps = 2},
        {.train_dataset = triples(4)});
    const auto output = trainer.train();
    const double mean = 9 * (1 + 4 + 9 + 16) / 16.0 / 4;
    CHECK(output.training_loss == doctest::Approx(mean));
    const auto& history = trainer.state().log_history;
    REQUIRE(history.size() == 2);
    CHECK(history[0].at("loss") == doctest::Approx(mean));
    CHECK(history[0].at("step") == 2);
    CHECK(history[0].at("epoch") == 1);
    CHECK(history[0].at("learning_rate") == 0);
    CHECK(history[0].contains("grad_norm"));
    CHECK(history[1].at("train_loss") == doctest::Approx(mean));
  });
}

TEST_CASE("logs appear by steps, by epochs, after the first step, or never") {
  const auto logged_at = [](TrainingArguments arguments) {
    arguments.per_device_train_batch_size = 1;
    arguments.num_train_epochs = 2;
    QuietTrainer trainer(OneWeight(), arguments, {.train_dataset = triples(3)});
    trainer.train();
    std::vector<double> steps;
    for (const auto& entry : trainer.state().log_history) {
      if (entry.contains("loss")) steps.push_back(entry.at("step"));
    }
    return steps;
  };
  using Steps = std::vector<double>;
  CHECK(logged_at({.logging_steps = 4}) == Steps{4});
  CHECK(logged_at({.logging_first_step = true, .logging_steps = 4}) == Steps{1, 4});
  CHECK(logged_at({.logging_strategy = IntervalStrategy::epoch}) == Steps{3, 6});
  CHECK(logged_at({.logging_strategy = IntervalStrategy::no, .logging_steps = 1}) == Steps{});
}

TEST_CASE("a request of one rank's callback is executed by all ranks after the same step") {
  simulate(2, [] {
    QuietTrainer trainer(OneWeight(), {.per_device_train_batch_size = 1, .num_train_epochs = 5},
                         {.train_dataset = triples(8), .callbacks = {std::make_shared<StopsOn>(1, 3)}});
    CHECK(trainer.train().global_step == 3);
  });
}

TEST_CASE("a request of a callback on one rank applies to all, and a callback without a request blocks no rank") {
  simulate(2, [] {
    for (const int64_t step : {3, 100}) {
      QuietTrainer trainer(OneWeight(), {.per_device_train_batch_size = 1, .num_train_epochs = 2},
                           {.train_dataset = triples(8)});
      if (trainer.accelerator().is_main_process()) trainer.add_callback(std::make_shared<StopsOn>(0, step));
      CHECK(trainer.train().global_step == std::min<int64_t>(step, 8));
    }
  });
}

TEST_CASE("the next epoch follows an epoch that ends early") {
  class EndsEpochs : public TrainerCallback {
    void on_step_end(const TrainerContext&, TrainerControl& control) override { control.should_epoch_stop = true; }
  };
  auto recorder = std::make_shared<Recorder>();
  QuietTrainer trainer(OneWeight(), {.per_device_train_batch_size = 1, .max_steps = 3},
                       {.train_dataset = triples(4), .callbacks = {std::make_shared<EndsEpochs>(), recorder}});
  CHECK(trainer.train().global_step == 3);
  CHECK(trainer.state().epoch == 3);
  CHECK(std::count(recorder->seen.begin(), recorder->seen.end(), "epoch_end") == 3);
}

TEST_CASE("num_train_epochs limits the training if epochs end early, too") {
  struct EndsEpochs : TrainerCallback {
    explicit EndsEpochs(int64_t most) : until(most) {}
    void on_step_end(const TrainerContext& now, TrainerControl& control) override {
      if (now.state.global_step <= until) control.should_epoch_stop = true;
    }
    int64_t until;
  };
  const auto trained = [](double epochs, int64_t until) {
    QuietTrainer trainer(OneWeight(), {.per_device_train_batch_size = 1, .num_train_epochs = epochs},
                         {.train_dataset = triples(4), .callbacks = {std::make_shared<EndsEpochs>(until)}});
    const int64_t steps = trainer.train().global_step;
    return std::pair(steps, trainer.state().epoch);
  };
  CHECK(trained(2, 100) == std::pair<int64_t, double>(2, 2));
  CHECK(trained(2, 1) == std::pair<int64_t, double>(5, 2));
  CHECK(trained(2.5, 1) == std::pair<int64_t, double>(9, 3));
  CHECK(trained(2.5, 0) == std::pair<int64_t, double>(10, 2.5));
  CHECK(trained(0.5, 100) == std::pair<int64_t, double>(1, 1));
}

TEST_CASE("a training that threw can start again") {
  struct Throwing : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
      if (++calls == 2) throw std::runtime_error("out of luck");
      return QuietTrainer::compute_loss(model, inputs);
    }
    int calls = 0;
  };
  Throwing trainer(OneWeight(), {.per_device_train_batch_size = 1, .num_train_epochs = 1},
                   {.train_dataset = triples(4)});
  CHECK_THROWS_WITH(trainer.train(), "out of luck");
  CHECK(trainer.train().global_step == 4);
}

TEST_CASE("a training starts without gradients, also after a train() that threw within a window") {
  struct Summed : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    std::shared_ptr<torch::optim::Optimizer> create_optimizer() override {
      return std::make_shared<torch::optim::SGD>(parameters(), 1.0);
    }
    LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
      if (++calls == throws_at) throw std::runtime_error("out of luck");
      return {model(inputs["x"]).sum()};
    }
    int calls = 0, throws_at = 0;
  };
  for (const int throws_at : {0, 1, 2, 3}) {
    CAPTURE(throws_at);
    OneWeight net;
    net->w.mutable_grad() = torch::full({1}, 1000.0, torch::kDouble);
    Summed trainer(net,
                   {.per_device_train_batch_size = 1,
                    .num_train_epochs = 1,
                    .gradient_accumulation_steps = 3,
                    .max_grad_norm = 0,
                    .lr_scheduler_type = accelerate::SchedulerType::constant},
                   {.train_dataset = triples(6)});
    trainer.throws_at = throws_at;
    if (throws_at > 0) CHECK_THROWS_WITH(trainer.train(), "out of luck");
    CHECK(trainer.train().global_step == 2);
    CHECK(trainer.weight() == doctest::Approx(-(1 + 2 + 3 + 4 + 5 + 6) / 6.0 / 3.0));
  }
}

TEST_CASE("optimizer, schedule and training step can be custom") {
  struct Own : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    std::shared_ptr<torch::optim::Optimizer> create_optimizer() override {
      return std::make_shared<torch::optim::SGD>(parameters(), 0.5);
    }
    std::shared_ptr<accelerate::optim::Scheduler> create_scheduler(torch::optim::Optimizer& optimizer,
                                                                   int64_t steps) override {
      planned = steps;
      return std::make_shared<accelerate::optim::Scheduler>(accelerate::optim::get_constant_schedule(optimizer));
    }
    at::Tensor training_step(Model& model, const Inputs& inputs) override {
      const auto loss = (model(inputs["x"]) - inputs["labels"]).sum();
      accelerator().backward(loss);
      return loss;
    }
    int64_t planned = 0;
  };
  Own trainer(OneWeight(), {.per_device_train_batch_size = 1, .num_train_epochs = 1, .max_grad_norm = 0},
              {.train_dataset = triples(1)});
  trainer.train();
  CHECK(trainer.planned == 1);
  CHECK(trainer.weight() == -0.5);  // one step of SGD: the gradient is x = 1
}

namespace {

struct TwoWeightsImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x * head + 8 * x * body; }
  at::Tensor head = register_parameter("head", torch::zeros({1}, torch::kDouble));
  at::Tensor body = register_parameter("body", torch::zeros({1}, torch::kDouble));
};
TORCH_MODULE(TwoWeights);

/// Steps only on the head, although other parameters are trainable.
struct TrainsHead : accelerate::Trainer<TwoWeights> {
  TrainsHead(const TwoWeights& net, const TrainingArguments& arguments, const TrainerParts& parts)
      : Trainer(net, arguments, parts), head(net->head) {
    remove_callback<accelerate::PrinterCallback>();
    remove_callback<accelerate::ProgressCallback>();
  }
  std::shared_ptr<torch::optim::Optimizer> create_optimizer() override {
    return std::make_shared<torch::optim::SGD>(std::vector{head}, 0.05);
  }
  LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
    const auto outputs = model(inputs["x"]);
    return {torch::mse_loss(outputs, inputs["labels"]), outputs};
  }
  at::Tensor head;
};

}  // namespace

TEST_CASE("parameters outside a custom optimizer are not in the norm, and their gradients do not accumulate") {
  for (const bool fp16 : {false, true}) {
    CAPTURE(fp16);
    std::vector<double> heads;
    for (const bool frozen : {true, false}) {
      simulate(2, [&, frozen, fp16] {
        TwoWeights net;
        net->body.requires_grad_(!frozen);
        TrainsHead trainer(net,
                           {.per_device_train_batch_size = 1,
                            .num_train_epochs = 2,
                            .max_grad_norm = 0.5,
                            .lr_scheduler_type = accelerate::SchedulerType::constant,
                            .fp16 = fp16},
                           {.train_dataset = triples(8)});
        trainer.train();
        CHECK_FALSE((net->body.grad().defined() && net->body.grad().abs().sum().item<double>() != 0));
        if (trainer.accelerator().is_main_process()) heads.push_back(net->head.item<double>());
      });
    }
    REQUIRE(heads.size() == 2);
    CHECK(heads[0] > 0.1);
    CHECK(heads[0] == doctest::Approx(heads[1]));
  }
}

TEST_CASE("parameters with one dimension have no weight decay") {
  struct Linear : accelerate::Trainer<torch::nn::Linear> {
    using Trainer::Trainer;
    LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
      return {(model(inputs["x"].to(torch::kFloat).view({-1, 1})) * 0).sum()};
    }
  };
  torch::nn::Linear net(1, 1);
  const double weight = net->weight.item<double>(), bias = net->bias.item<double>();
  Linear trainer(net,
                 {.per_device_train_batch_size = 4,
                  .num_train_epochs = 1,
                  .learning_rate = 0.1,
                  .weight_decay = 0.5,
                  .lr_scheduler_type = accelerate::SchedulerType::constant},
                 {.train_dataset = triples(4)});
  trainer.remove_callback<accelerate::PrinterCallback>();
  trainer.train();
  CHECK(net->weight.item<double>() == doctest::Approx(weight * 0.95));
  CHECK(net->bias.item<double>() == bias);
}

TEST_CASE("a weight that two layers share counts as one parameter") {
  struct Tied : accelerate::Trainer<torch::nn::Sequential> {
    using Trainer::Trainer;
    LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
      return {model(inputs["x"].to(torch::kFloat).view({-1, 1})).sum()};
    }
  };
  torch::nn::Linear layer(torch::nn::LinearOptions(1, 1).bias(false));
  Tied trainer(torch::nn::Sequential(layer, layer), {.num_train_epochs = 1}, {.train_dataset = triples(4)});
  trainer.remove_callback<accelerate::PrinterCallback>();
  CHECK(trainer.train().global_step == 1);
  CHECK(trainer.plan().size.trainable_parameters == 1);
}

TEST_CASE("a TorchScript module is trained and evaluated, and its layers keep their modes") {
  struct Scripted : accelerate::Trainer<torch::jit::Module> {
    using Trainer::Trainer;
    LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
      const auto outputs = model({inputs["x"]}).toTensor();
      return {torch::mse_loss(outputs, inputs["labels"]), outputs};
    }
  };
  torch::jit::Module net("net");
  net.register_attribute("training", c10::BoolType::get(), true);
  net.register_parameter("w", torch::zeros({1}, torch::kDouble).requires_grad_(), false);
  net.define("def forward(self, x):\n  return self.w * x\n");
  Scripted trainer(
      net, {.per_device_train_batch_size = 4, .num_train_epochs = 50, .learning_rate = 0.1, .disable_tqdm = true},
      {.train_dataset = triples(4), .eval_dataset = triples(4)});
  trainer.remove_callback<accelerate::PrinterCallback>();
  CHECK(trainer.train().global_step == 50);
  CHECK(trainer.evaluate().at("eval_loss") < 1);
  CHECK(net.attr("w").toTensor().item<double>() > 1);
  CHECK(net.is_training());
}

TEST_CASE("only the main process prints plan and logs") {
  std::vector<std::string> printed(2);
  simulate(2, [&] {
    TripleTrainer trainer(OneWeight(), {.per_device_train_batch_size = 1, .num_train_epochs = 1, .logging_steps = 1},
                          {.train_dataset = triples(2)});
    trainer.remove_callback<accelerate::PrinterCallback>();
    auto& text = printed[static_cast<size_t>(trainer.accelerator().process_index())];
    trainer.add_callback(std::make_shared<accelerate::PrinterCallback>([&](std::string_view more) { text += more; }));
    trainer.train();
  });
  CHECK(printed[0].starts_with("***** Running training *****\n  Num examples = 2\n"));
  CHECK(printed[0].find("{'epoch': 1.0, 'grad_norm': 3.75, 'learning_rate': 5e-05, 'loss': 5.625}\n{'epoch': 1.0, "
                        "'train_loss': 5.625, 'train_runtime': ") != std::string::npos);
  CHECK(printed[1].empty());
}

TEST_CASE("the error names the missing parts of a Trainer") {
  const TrainingArguments one_epoch{.num_train_epochs = 1};
  CHECK(refusal([&] { QuietTrainer(OneWeight(), one_epoch).train(); }) ==
        here() + "train: train_dataset is not set; set it in TrainerParts");
  CHECK(refusal([&] { (void)QuietTrainer(OneWeight(), one_epoch).plan(); }) ==
        here() + "plan: there is none before train()");
  CHECK(refusal([&] { QuietTrainer(OneWeight(), one_epoch).add_callback(nullptr); }) ==
        here() + "add_callback: the callback is null");
  CHECK(refusal([&] {
          OneWeight frozen;
          frozen->w.set_requires_grad(false);
          QuietTrainer(frozen, one_epoch, {.train_dataset = triples(1)}).train();
        }) == here() + "create_optimizer: the model has no trainable parameter");
}

TEST_CASE("a batch without the key that compute_loss needs is an error with the existing keys") {
  struct Wrong : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
      return {model(inputs["pixel_values"]).sum()};
    }
  };
  Wrong trainer(OneWeight(), {}, {.train_dataset = triples(1)});
  CHECK(refusal([&] { trainer.train(); }) == here() +
                                                 "batch: there is no \"pixel_values\", the collate function returned "
                                                 "\"labels\" and \"x\"; use one of these, or "
                                                 "let the collate function return that one too");
}

TEST_CASE("values in both the arguments and the options of the Accelerator must agree") {
  using accelerate::Precision;
  CHECK(refusal([] {
          QuietTrainer(OneWeight(), {.bf16 = true}, {.accelerator = {.mixed_precision = Precision::fp16}});
        }) == "Trainer: mixed precision is bf16 in TrainingArguments and fp16 in AcceleratorOptions; set it only once");
  CHECK(refusal([] {
          QuietTrainer(OneWeight(), {.gradient_accumulation_steps = 2},
                       {.accelerator = {.gradient_accumulation_steps = 3}});
        }) ==
        "Trainer: gradient_accumulation_steps is 2 in TrainingArguments and 3 in AcceleratorOptions; set it only once");
  CHECK(refusal([] { QuietTrainer(OneWeight(), {}, {.accelerator = {.even_batches = false}}); }) ==
        "Trainer: even_batches is false; ranks would make different numbers of steps: keep it true, or set "
        "dataloader_drop_last");
  CHECK(refusal([] {
          QuietTrainer(OneWeight(), {}, {.accelerator = {.accumulation = {.sync_with_dataloader = false}}});
        }) == "Trainer: sync_with_dataloader is false; an epoch of a Trainer ends with a step: keep it true");
  CHECK(refusal([] {
          QuietTrainer(OneWeight(), {}, {.accelerator = {.scheduler_unit = accelerate::SchedulerUnit::processes}});
        }) ==
        "Trainer: scheduler_unit is processes; a Trainer makes its schedule of the training's optimizer steps, which "
        "would end after a part of them: keep optimizer_steps");
  QuietTrainer bf16(OneWeight(), {.bf16 = true});
  CHECK(bf16.accelerator().mixed_precision() == Precision::bf16);
}

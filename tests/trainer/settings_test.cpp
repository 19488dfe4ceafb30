// SPDX-License-Identifier: Apache-2.0
// Effects of the arguments: precision, loaders, rates, seeds, AdamW's numbers.
#include "tests/testing.hpp"
//
#include <cmath>

#include "tests/temporary_folder.hpp"
#include "tests/trainer/support.hpp"

using namespace trainer_testing;
using accelerate::SchedulerType;
using accelerate::simulate;

namespace {

/// A layer that records the dtype in which it computes.
struct NotingImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const auto out = line(x);
    computed_in.push_back(out.scalar_type());
    return out;
  }
  torch::nn::Linear line = register_module("line", torch::nn::Linear(1, 1));
  std::vector<at::ScalarType> computed_in;
};
TORCH_MODULE(Noting);

struct NotingTrainer : accelerate::Trainer<Noting> {
  using Trainer::Trainer;
  LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
    const auto outputs = model(inputs["x"].to(torch::kFloat).view({-1, 1})).view({-1});
    return {torch::mse_loss(outputs, inputs["labels"].to(torch::kFloat)), outputs};
  }
};

/// A Trainer with accessible components that records its observations.
struct OpenTrainer : QuietTrainer {
  using QuietTrainer::create_optimizer;
  using QuietTrainer::get_eval_dataloader;
  using QuietTrainer::get_train_dataloader;
  using QuietTrainer::QuietTrainer;
  LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
    seen.push_back(std::lround(inputs["x"][0].item<double>() * 16));
    drawn.push_back(torch::rand({1}).item<double>());
    return QuietTrainer::compute_loss(model, inputs);
  }
  std::vector<int64_t> seen;
  std::vector<double> drawn;
};

struct Drawn {
  std::vector<int64_t> order;
  std::vector<double> random;
};

Drawn drawn_with(uint64_t seed, std::optional<uint64_t> data_seed = {}) {
  OpenTrainer trainer(OneWeight(),
                      {.per_device_train_batch_size = 1, .num_train_epochs = 1, .seed = seed, .data_seed = data_seed},
                      {.train_dataset = triples(16)});
  trainer.train();
  return {trainer.seen, trainer.drawn};
}

std::vector<double> rates_of(SchedulerType type) {
  QuietTrainer trainer(OneWeight(),
                       {.per_device_train_batch_size = 1,
                        .max_steps = 6,
                        .learning_rate = 1.0,
                        .lr_scheduler_type = type,
                        .warmup_steps = type == SchedulerType::constant ? 0 : 2,
                        .logging_steps = 1},
                       {.train_dataset = triples(6)});
  trainer.train();
  std::vector<double> rates;
  for (const auto& entry : trainer.state().log_history) {
    if (entry.contains("learning_rate")) rates.push_back(entry.at("learning_rate"));
  }
  return rates;
}

}  // namespace

TEST_CASE("bf16 and fp16 apply to training and evaluation of a Trainer, and it learns") {
  for (const auto& [type, bf16, fp16] : {std::tuple{at::kFloat, false, false}, std::tuple{at::kBFloat16, true, false},
                                         std::tuple{at::kHalf, false, true}}) {
    Noting net;
    NotingTrainer trainer(net,
                          {.per_device_train_batch_size = 4,
                           .num_train_epochs = 60,
                           .learning_rate = 0.2,
                           .bf16 = bf16,
                           .fp16 = fp16,
                           .logging_strategy = IntervalStrategy::no,
                           .disable_tqdm = true},
                          {.train_dataset = triples(4), .eval_dataset = triples(4)});
    trainer.remove_callback<accelerate::PrinterCallback>();
    const double before = trainer.evaluate().at("eval_loss");
    trainer.train();
    CHECK(trainer.evaluate().at("eval_loss") < before / 10);
    CHECK(net->computed_in.size() == 62);
    CHECK(std::count(net->computed_in.begin(), net->computed_in.end(), type) == 62);
    const bool parameters_stay = net->line->weight.scalar_type() == at::kFloat;
    CHECK(parameters_stay);
    CHECK((trainer.accelerator().loss_scale() > 1) == fp16);
  }
}

TEST_CASE("dataloader_* apply to the loaders of training and evaluation") {
  OpenTrainer trainer(OneWeight(),
                      {.per_device_train_batch_size = 3,
                       .per_device_eval_batch_size = 5,
                       .dataloader_num_workers = 2,
                       .dataloader_prefetch_factor = 4,
                       .dataloader_pin_memory = false,
                       .dataloader_drop_last = true},
                      {.train_dataset = triples(7)});
  const auto train = trainer.get_train_dataloader(), eval = trainer.get_eval_dataloader(triples(7));
  for (const auto* loader : {&train, &eval}) {
    CHECK(loader->options().num_workers == 2);
    CHECK(loader->options().prefetch_factor == 4);
    CHECK(loader->options().pin_memory == false);
  }
  CHECK(train.options().batch_size == 3);
  CHECK(eval.options().batch_size == 5);
  CHECK(train.options().drop_last);
  CHECK(!eval.options().drop_last);  // a model is evaluated on all examples
  CHECK(trainer.train().global_step == 6);
  const auto unset = OpenTrainer(OneWeight(), {}, {.train_dataset = triples(7)}).get_train_dataloader();
  CHECK(unset.options().num_workers == 0);
  CHECK(unset.options().prefetch_factor == 2);
  CHECK(unset.options().pin_memory == true);
  CHECK(!unset.options().drop_last);
}

TEST_CASE("each schedule has transformers' rates, after a warm-up except for constant") {
  const auto is = [](const std::vector<double>& seen, const std::vector<double>& expected) {
    REQUIRE(seen.size() == expected.size());
    for (size_t i = 0; i < seen.size(); ++i) CHECK(seen[i] == doctest::Approx(expected[i]));
  };
  const auto cosine = [](double part) { return 0.5 * (1 + std::cos(M_PI * part)); };
  is(rates_of(SchedulerType::linear), {0, 0.5, 1, 0.75, 0.5, 0.25});
  is(rates_of(SchedulerType::cosine), {0, 0.5, 1, cosine(0.25), 0.5, cosine(0.75)});
  is(rates_of(SchedulerType::cosine_with_restarts), {0, 0.5, 1, cosine(0.25), 0.5, cosine(0.75)});
  is(rates_of(SchedulerType::polynomial), {0, 0.5, 1, 0.75, 0.5, 0.25});
  is(rates_of(SchedulerType::constant), {1, 1, 1, 1, 1, 1});
  is(rates_of(SchedulerType::constant_with_warmup), {0, 0.5, 1, 1, 1, 1});
  is(rates_of(SchedulerType::inverse_sqrt), {0, 0.5, 1, std::sqrt(2. / 3), std::sqrt(2. / 4), std::sqrt(2. / 5)});
}

TEST_CASE("seed determines order and random numbers, data_seed only the order, and defaults to seed") {
  const auto seven = drawn_with(7), again = drawn_with(7), eight = drawn_with(8), data = drawn_with(7, 8);
  CHECK(seven.order == again.order);
  CHECK(seven.random == again.random);
  CHECK(seven.order != eight.order);
  CHECK(seven.random != eight.random);
  CHECK(data.order == eight.order);
  CHECK(data.random == seven.random);
}

TEST_CASE("AdamW has the values of the arguments") {
  OpenTrainer trainer(
      OneWeight(),
      {.learning_rate = 0.5, .weight_decay = 0.25, .adam_beta1 = 0.75, .adam_beta2 = 0.875, .adam_epsilon = 1e-3});
  const auto optimizer = trainer.create_optimizer();
  REQUIRE(optimizer->param_groups().size() == 1);
  const auto& options = dynamic_cast<const torch::optim::AdamWOptions&>(optimizer->param_groups()[0].options());
  CHECK(options.lr() == 0.5);
  CHECK(options.weight_decay() == 0);  // one dimension, so no weight decay
  CHECK(options.betas() == std::tuple(0.75, 0.875));
  CHECK(options.eps() == 1e-3);
}

TEST_CASE("save_model() writes portable weights, by default to output_dir") {
  const testing::TemporaryFolder folder;
  QuietTrainer trainer(OneWeight(4.5), {.output_dir = folder.path / "run"});
  trainer.save_model();
  trainer.save_model(folder.path / "elsewhere");
  for (const std::string where : {"run", "elsewhere"}) {
    CHECK(accelerate::Accelerator::load(folder.path / where / "model.safetensors")["w"].item<double>() == 4.5);
  }
  CHECK(refusal([] { QuietTrainer(OneWeight(), {}).save_model(); }) ==
        here() + "save_model: no folder is given and output_dir is empty; give one of them");
}

TEST_CASE("training and evaluation loaders can be custom") {
  struct OwnLoaders : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    accelerate::data::LoaderOf<Inputs> get_train_dataloader() override { return {triples(5), {.batch_size = 1}}; }
    accelerate::data::LoaderOf<Inputs> get_eval_dataloader(const accelerate::trainer::Dataset& dataset) override {
      return {accelerate::data::take(dataset, 2), {.batch_size = 1}};
    }
  };
  OwnLoaders trainer(OneWeight(), {.num_train_epochs = 1});
  CHECK(trainer.train().global_step == 5);
  CHECK(trainer.predict(triples(6)).predictions.size(0) == 2);
}

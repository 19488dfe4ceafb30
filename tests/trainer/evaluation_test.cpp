// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <unistd.h>

#include "tests/build_folder.hpp"
#include "tests/trainer/support.hpp"

using namespace trainer_testing;
using accelerate::BestModelCallback;
using accelerate::EarlyStoppingCallback;
using accelerate::EvalPrediction;
using accelerate::simulate;
using accelerate::trainer::TrainerBase;

namespace {

/// The mean error of the predictions, and their number.
Metrics errors(const EvalPrediction& prediction) {
  const auto off = (prediction.predictions - prediction.label_ids["labels"]).abs();
  return {{"error", off.mean().item<double>()}, {"eval_count", static_cast<double>(off.size(0))}};
}

/// The evaluations of a training return these values of "score" in order.
std::function<Metrics(const EvalPrediction&)> scores(std::vector<double> values) {
  return [values, next = std::make_shared<size_t>(0)](const EvalPrediction&) {
    return Metrics{{"score", values.at((*next)++)}};
  };
}

TrainingArguments each_step(const std::string& metric, std::optional<bool> greater = {}) {
  return {.per_device_train_batch_size = 1,
          .num_train_epochs = 10,
          .eval_strategy = IntervalStrategy::steps,
          .eval_steps = 1,
          .metric_for_best_model = metric,
          .greater_is_better = greater};
}

/// Its loss is the first number of x of each batch. If that is above 1, there is no loss.
struct FirstOfBatch : QuietTrainer {
  using QuietTrainer::QuietTrainer;
  LossAndOutputs prediction_step(Model&, const Inputs& inputs) override {
    const at::Tensor first = inputs["x"][0];
    return {.loss = first.item<double>() > 1 ? at::Tensor() : first, .outputs = inputs["x"]};
  }
};

/// Examples with these x.
accelerate::trainer::Dataset with_x(std::vector<double> values) {
  struct Given {
    [[nodiscard]] int64_t size() const { return static_cast<int64_t>(x.size()); }
    [[nodiscard]] Example get(int64_t i) const { return {x.at(static_cast<size_t>(i)), 0}; }
    std::vector<double> x;
  };
  return accelerate::data::dataset_source(Given{std::move(values)}, collate);
}

int64_t steps_with(const TrainingArguments& arguments, const std::vector<double>& values,
                   const std::shared_ptr<TrainerCallback>& callback) {
  QuietTrainer trainer(OneWeight(), arguments,
                       {.train_dataset = triples(1),
                        .eval_dataset = triples(1),
                        .compute_metrics = scores(values),
                        .callbacks = {callback}});
  return trainer.train().global_step;
}

}  // namespace

TEST_CASE("evaluate() counts every example once, on any number of ranks") {
  for (const int64_t ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    simulate(ranks, [] {
      QuietTrainer trainer(OneWeight(1.0), {.per_device_eval_batch_size = 2},
                           {.eval_dataset = triples(7), .compute_metrics = errors});
      const auto metrics = trainer.evaluate();
      CHECK(metrics.at("eval_loss") == doctest::Approx(4 * 140.0 / 49 / 7));  // (3 x - x)^2
      CHECK(metrics.at("eval_error") == doctest::Approx(2 * 28.0 / 7 / 7));
      CHECK(metrics.at("eval_count") == 7);
      CHECK(metrics.contains("eval_runtime"));
      CHECK(metrics.at("epoch") == 0);
      CHECK(trainer.state().log_history.size() == 1);
    });
  }
}

TEST_CASE("evaluate() counts every example once, also if a sampler's batches have several sizes") {
  struct Ragged : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    accelerate::data::LoaderOf<Inputs> get_eval_dataloader(const accelerate::trainer::Dataset& dataset) override {
      const std::vector<std::vector<int64_t>> batches{{0}, {1, 2}, {3, 4, 5}, {6, 7}, {8}, {9, 10, 11, 12}};
      const auto begin = batches.begin();
      const auto used = dataset->size() == 6 ? std::vector(begin, begin + 3) : batches;
      return {dataset, {.batch_sampler = [=](uint64_t, int64_t) { return used; }}};
    }
  };
  for (const int64_t ranks : {1, 2, 3, 4}) {
    for (const int64_t examples : {6, 13}) {
      CAPTURE(ranks);
      CAPTURE(examples);
      simulate(ranks, [&] {
        Ragged trainer(OneWeight(1.0), {}, {.eval_dataset = triples(examples), .compute_metrics = errors});
        const auto metrics = trainer.evaluate();
        CHECK(metrics.at("eval_count") == static_cast<double>(examples));
        CHECK(metrics.at("eval_error") ==
              doctest::Approx(static_cast<double>(examples + 1) / static_cast<double>(examples)));
      });
    }
  }
}

TEST_CASE("ranks compare the same number, also if the metric is a time on each rank") {
  simulate(2, [] {
    auto arguments = each_step("samples_per_second", true);
    arguments.num_train_epochs = 5;
    QuietTrainer trainer(OneWeight(), arguments, {.train_dataset = triples(2), .eval_dataset = triples(2)});
    trainer.train();
    const auto best =
        trainer.accelerator().gather(torch::full({1}, trainer.state().best_metric.value(), torch::kDouble));
    CHECK(best[0].item<double>() == best[1].item<double>());
  });
}

TEST_CASE("another dataset is evaluated with its own prefix") {
  QuietTrainer trainer(OneWeight(3.0), {}, {.eval_dataset = triples(2), .compute_metrics = errors});
  const auto metrics = trainer.evaluate(triples(9), "other");
  CHECK(metrics.at("other_error") == 0);
  CHECK(metrics.at("other_loss") == 0);
  CHECK(metrics.at("other_eval_count") == 9);
}

TEST_CASE("predict() returns predictions and labels in the order of the examples") {
  simulate(2, [] {
    QuietTrainer trainer(OneWeight(2.0), {.per_device_eval_batch_size = 2});
    const auto output = trainer.predict(triples(5));
    CHECK(output.predictions.allclose(2 * torch::arange(1, 6, torch::kDouble) / 5.0));
    CHECK(output.label_ids["labels"].allclose(3 * torch::arange(1, 6, torch::kDouble) / 5.0));
    CHECK(output.metrics.contains("test_loss"));
  });
}

TEST_CASE("predict() accepts batches without labels if prediction_step() supports them") {
  struct Unlabelled : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    LossAndOutputs prediction_step(Model& model, const Inputs& inputs) override {
      return {.loss = {}, .outputs = model(inputs["x"])};
    }
  };
  const auto unlabelled = accelerate::data::map(triples(3), [](const Inputs& inputs) {
    return Inputs{{"x", inputs["x"]}};
  });
  Unlabelled trainer(OneWeight(1.0), {}, {.compute_metrics = errors});
  const auto output = trainer.predict(unlabelled);
  CHECK(output.predictions.allclose(torch::arange(1, 4, torch::kDouble) / 3.0));
  CHECK(output.label_ids.empty());
  CHECK(!output.metrics.contains("test_loss"));
  CHECK(!output.metrics.contains("test_error"));
}

TEST_CASE("a batch without a loss is not part of the mean, and a dataset without any has no loss") {
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    simulate(ranks, [] {
      const auto evaluated = [](std::vector<double> x) {
        FirstOfBatch trainer(OneWeight(), {.per_device_eval_batch_size = 1}, {.eval_dataset = with_x(std::move(x))});
        return trainer.evaluate();
      };
      CHECK(evaluated({0.25, 9}).at("eval_loss") == 0.25);
      CHECK(evaluated({0.25, 9, 0.75}).at("eval_loss") == 0.5);
      CHECK_FALSE(evaluated({9, 8, 7}).contains("eval_loss"));
    });
  }
}

TEST_CASE("a NaN loss counts: evaluate() reports it, and early stopping uses it") {
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    simulate(ranks, [ranks] {
      const auto nan = std::nan("");
      FirstOfBatch trainer(OneWeight(),
                           {.per_device_train_batch_size = 1,
                            .num_train_epochs = 10,
                            .eval_strategy = IntervalStrategy::steps,
                            .eval_steps = 1},
                           {.train_dataset = triples(ranks),
                            .eval_dataset = with_x({nan, nan, nan}),
                            .callbacks = {std::make_shared<EarlyStoppingCallback>(1)}});
      CHECK(std::isnan(trainer.evaluate().at("eval_loss")));
      CHECK(trainer.train().global_step == 1);
      CHECK(!trainer.state().best_metric);
      FirstOfBatch one_of_three(OneWeight(), {.per_device_eval_batch_size = 1},
                                {.eval_dataset = with_x({0.25, nan, 0.75})});
      CHECK(std::isnan(one_of_three.evaluate().at("eval_loss")));
    });
  }
}

TEST_CASE("predictions of different length are padded with -100") {
  struct Ragged : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
      const auto x = model(inputs["x"]);
      const auto length = static_cast<int64_t>(std::lround(inputs["x"].item<double>() * 3));
      return {x.sum(), x.view({1, 1}).expand({1, length})};
    }
  };
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    simulate(ranks, [] {
      Ragged trainer(OneWeight(3.0), {.per_device_eval_batch_size = 1});
      const auto expected = torch::tensor({{1., -100., -100.}, {2., 2., -100.}, {3., 3., 3.}}, torch::kDouble);
      CHECK(trainer.predict(triples(3)).predictions.allclose(expected));
    });
  }
}

TEST_CASE("bool and unsigned outputs are int64 if they are padded") {
  struct Flags : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
      const auto length = ragged ? static_cast<int64_t>(std::lround(inputs["x"].item<double>() * 3)) : 2;
      return {model(inputs["x"]).sum(), torch::ones({1, length}, type)};
    }
    torch::ScalarType type = torch::kBool;
    bool ragged = true;
  };
  for (const int64_t ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    simulate(ranks, [] {
      for (const auto type :
           {torch::kBool, torch::kByte, torch::kChar, torch::kUInt16, torch::kUInt32, torch::kUInt64}) {
        Flags trainer(OneWeight(), {.per_device_eval_batch_size = 1});
        trainer.type = type;
        const auto filled = trainer.predict(triples(3)).predictions;
        const bool kept = filled.scalar_type() == type;
        CHECK(kept == (type == torch::kChar));
        CHECK(filled.to(torch::kLong).equal(torch::tensor({{1, -100, -100}, {1, 1, -100}, {1, 1, 1}}, torch::kLong)));
        trainer.ragged = false;
        const auto whole = trainer.predict(triples(3)).predictions;
        const bool is_still_valid = whole.scalar_type() == type;
        CHECK(is_still_valid);
        CHECK(whole.to(torch::kLong).equal(torch::ones({3, 2}, torch::kLong)));
      }
    });
  }
}

TEST_CASE("uint64 outputs beyond int64 are refused on every rank if they need padding") {
  struct Large : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
      const auto third = static_cast<int64_t>(std::lround(inputs["x"].item<double>() * 3));
      const auto values = torch::full({1, ragged ? third : 2}, third == 1 ? -1 : 1, torch::kLong);
      return {model(inputs["x"]).sum(), values.view(torch::kUInt64)};  // 2^64 - 1 for the first example
    }
    bool ragged = true;
  };
  const std::string reason =
      "the outputs of different length are filled with -100 as int64, and uint64 values above 9223372036854775807 do "
      "not fit into int64; set another dtype, or the same length in all batches";
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    simulate(ranks, [&] {
      Large trainer(OneWeight(), {.per_device_eval_batch_size = 1});
      const auto place = here(trainer.accelerator().process_index(), ranks);
      CHECK(refusal([&] { trainer.predict(triples(3)); }) ==
            place + (ranks == 1 ? "test: " : "compute_loss: ") + reason);
      trainer.ragged = false;
      const auto kept = trainer.predict(triples(3)).predictions;
      CHECK(kept.view(torch::kLong).equal(torch::tensor({{-1, -1}, {1, 1}, {1, 1}}, torch::kLong)));
    });
  }
}

TEST_CASE("outputs and labels without one row per example are refused with both numbers") {
  struct Shaped : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
      return {model(inputs["x"]).sum(), outputs(inputs["x"])};
    }
    std::function<at::Tensor(const at::Tensor&)> outputs;
  };
  simulate(2, [] {
    const auto place = here(accelerate::Accelerator().process_index(), 2);
    const auto predicted = [&](std::function<at::Tensor(const at::Tensor&)> outputs,
                               const accelerate::trainer::Dataset& examples) {
      Shaped trainer(OneWeight(), {.per_device_eval_batch_size = 3});
      trainer.outputs = std::move(outputs);
      return refusal([&] { trainer.predict(examples); });
    };
    const std::string reason = " in a batch of 3 examples; compute_metrics and predict() need one row per example";
    CHECK(predicted(
              [](const auto& x) {
                return torch::cat({x, x});
              },
              triples(6)) == place + "compute_loss: the outputs are [6]" + reason);
    CHECK(predicted(
              [](const auto& x) {
                return x.view({1, -1});
              },
              triples(6)) == place + "compute_loss: the outputs are [1, 3]" + reason);
    CHECK(predicted([](const auto& x) { return x.sum(); }, triples(6)) ==
          place + "compute_loss: the outputs are []" + reason);
    const auto odd_labels = accelerate::data::map(triples(6), [](const Inputs& inputs) {
      return Inputs{{"a", inputs["x"]}, {"labels", torch::ones({4})}, {"x", inputs["x"]}};
    });
    CHECK(predicted([](const auto& x) { return x; }, odd_labels) == place + "label_names: \"labels\" is [4]" + reason);
  });
  Shaped trainer(OneWeight(), {.per_device_eval_batch_size = 1});
  trainer.outputs = [](const auto& x) { return torch::ones({1, 2, std::lround(x.template item<double>() * 2)}); };
  CHECK(refusal([&] { trainer.predict(triples(2)); }) ==
        here() +
            "test: the outputs are [1, 2, 1] of one batch, [1, 2, 2] of another; only the first two dimensions may "
            "differ");
}

TEST_CASE("evaluation uses evaluation mode without gradients, and restores the training mode") {
  struct Watching : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
      modes += model->is_training() ? 't' : 'e';
      CHECK(torch::GradMode::is_enabled() == model->is_training());
      return QuietTrainer::compute_loss(model, inputs);
    }
    std::string modes;
  };
  Watching trainer(OneWeight(),
                   {.per_device_train_batch_size = 1,
                    .num_train_epochs = 2,
                    .eval_strategy = IntervalStrategy::steps,
                    .eval_steps = 2,
                    .eval_delay = 3},
                   {.train_dataset = triples(3), .eval_dataset = triples(1)});
  trainer.train();
  CHECK(trainer.modes ==
        "tttte"
        "tte");
}

TEST_CASE("an evaluation restores each layer's own mode, of frozen layers too") {
  struct Frozen : OneWeightImpl {
    torch::nn::Sequential block =
        register_module("block", torch::nn::Sequential(torch::nn::Dropout(), torch::nn::Dropout()));
    std::vector<bool> modes() {
      return {is_training(), block->is_training(), block[0]->is_training(), block[1]->is_training()};
    }
  };
  struct FrozenTrainer : accelerate::Trainer<std::shared_ptr<Frozen>> {
    using Trainer::Trainer;
    LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
      if (!model->is_training()) CHECK(model->modes() == std::vector<bool>(4, false));
      return {torch::mse_loss(model(inputs["x"]), inputs["labels"])};
    }
  };
  struct Freezes : TrainerCallback {
    explicit Freezes(std::shared_ptr<Frozen> what) : net(std::move(what)) {}
    void on_train_begin(const TrainerContext&, TrainerControl&) override {
      net->block->eval();
      net->block[1]->as<torch::nn::Dropout>()->train();
    }
    std::shared_ptr<Frozen> net;
  };
  const auto net = std::make_shared<Frozen>();
  FrozenTrainer trainer(
      net, {.eval_strategy = IntervalStrategy::epoch, .disable_tqdm = true},
      {.train_dataset = triples(1), .eval_dataset = triples(1), .callbacks = {std::make_shared<Freezes>(net)}});
  trainer.remove_callback<accelerate::PrinterCallback>();
  trainer.train();
  CHECK(net->modes() == std::vector<bool>{true, false, false, true});
}

TEST_CASE("training stops after patience evaluations without improvement") {
  const auto stopping = [](int64_t patience, double threshold = 0) {
    return std::make_shared<EarlyStoppingCallback>(patience, threshold);
  };
  CHECK(steps_with(each_step("score"), {1, 2, 1.5}, stopping(1)) == 3);
  CHECK(steps_with(each_step("score"), {1, 2, 1.5, 3, 2, 2}, stopping(2)) == 6);
  CHECK(steps_with(each_step("score", false), {3, 2, 2.5}, stopping(1)) == 3);
  CHECK(steps_with(each_step("score"), {1, 1.05, 1.2}, stopping(1, 0.1)) == 2);
  CHECK(steps_with(each_step("score"), {1, std::nan("")}, stopping(1)) == 2);
}

TEST_CASE("the best evaluation is recorded, and its weights are restored") {
  simulate(2, [] {
    std::vector<double> weights;
    struct Noting : TrainerCallback {
      explicit Noting(std::vector<double>& to) : weights(to) {}
      void on_evaluate(const TrainerContext& now, TrainerControl&) override {
        weights.push_back(now.trainer.parameters().front().item<double>());
      }
      std::vector<double>& weights;
    };
    auto arguments = each_step("score");
    arguments.max_steps = 4;
    arguments.learning_rate = 0.1;
    QuietTrainer trainer(OneWeight(), arguments,
                         {.train_dataset = triples(2),
                          .eval_dataset = triples(2),
                          .compute_metrics = scores({1, 5, 5, 2}),
                          .callbacks = {std::make_shared<BestModelCallback>(), std::make_shared<Noting>(weights)}});
    trainer.train();
    CHECK(trainer.state().best_metric == 5);
    CHECK(trainer.state().best_global_step == 2);
    REQUIRE(weights.size() == 4);
    CHECK(trainer.weight() == weights[1]);
    CHECK(trainer.weight() != weights[3]);
  });
}

TEST_CASE("evaluations of another dataset, and those outside of train(), do not affect the best") {
  struct AlsoOther : TrainerCallback {
    void on_evaluate(const TrainerContext& now, TrainerControl&) override {
      if (!now.for_best) return;
      now.trainer.evaluate(triples(3), "other");
      now.trainer.evaluate(triples(3), "eval");
      now.trainer.evaluate(nullptr, "again");
    }
  };
  const auto best = std::make_shared<BestModelCallback>();
  const std::vector<double> scores{1, 2, 1.5, 3, 2, 2};
  size_t next = 0;
  TrainerBase* which = nullptr;
  QuietTrainer trainer(
      OneWeight(), each_step("score"),
      {.train_dataset = triples(1),
       .eval_dataset = triples(1),
       .compute_metrics =
           [&](const EvalPrediction& prediction) {
             const bool own = prediction.predictions.size(0) == 1 && which->state().global_step == int64_t(next) + 1;
             return Metrics{{"score", own ? scores.at(next++) : 9.0}};  // other evaluations would be the best
           },
       .callbacks = {std::make_shared<EarlyStoppingCallback>(2), best, std::make_shared<AlsoOther>()}});
  which = &trainer;
  CHECK(trainer.train().global_step == 6);
  CHECK(trainer.state().best_metric == 3);
  CHECK(trainer.state().best_global_step == 4);
  CHECK(trainer.evaluate(triples(3), "test").contains("test_loss"));
  CHECK(trainer.evaluate().contains("eval_loss"));
  CHECK(best->state_dict().is_empty());  // no copy of the best model is kept, because no training will need it
}

TEST_CASE("an unknown metric is refused with the known ones") {
  QuietTrainer trainer(OneWeight(), each_step("accurcy"),
                       {.train_dataset = triples(1), .eval_dataset = triples(1), .compute_metrics = errors});
  CHECK(refusal([&] { trainer.train(); }) ==
        here() +
            "metric_for_best_model: there is no metric \"eval_accurcy\", the evaluation returned \"eval_count\", "
            "\"eval_error\", \"eval_loss\", \"eval_runtime\", \"eval_samples_per_second\" and "
            "\"eval_steps_per_second\"; name one of them as metric_for_best_model");
}

TEST_CASE("load_best_model_at_end without a loss to compare is refused with the existing metrics") {
  FirstOfBatch trainer(OneWeight(),
                       {.per_device_train_batch_size = 1,
                        .eval_strategy = IntervalStrategy::steps,
                        .eval_steps = 1,
                        .output_dir = fmt::format("{}/trainer_no_loss_{}", testing::build_folder(), getpid()),
                        .load_best_model_at_end = true},
                       {.train_dataset = triples(1), .eval_dataset = with_x({9})});
  CHECK(refusal([&] { trainer.train(); }) ==
        here() +
            "metric_for_best_model: there is no metric \"eval_loss\", the evaluation returned \"eval_runtime\", "
            "\"eval_samples_per_second\" and \"eval_steps_per_second\"; name one of them as metric_for_best_model");
}

TEST_CASE("errors about missing outputs and labels contain the rank") {
  simulate(2, [] {
    const auto place = [rank = accelerate::Accelerator().process_index()] { return here(rank, 2); };
    const auto train_with = [](const std::shared_ptr<TrainerCallback>& callback) {
      return refusal([&] {
        FirstOfBatch(OneWeight(), {.eval_strategy = IntervalStrategy::epoch},
                     {.train_dataset = triples(2), .eval_dataset = with_x({9, 9}), .callbacks = {callback}})
            .train();
      });
    };
    const std::string missing = ": there is no metric \"eval_loss\", the evaluation returned ";
    CHECK(
        train_with(std::make_shared<EarlyStoppingCallback>()).starts_with(place() + "EarlyStoppingCallback" + missing));
    CHECK(train_with(std::make_shared<BestModelCallback>()).starts_with(place() + "BestModelCallback" + missing));
    struct Wrong : QuietTrainer {
      using QuietTrainer::QuietTrainer;
      LossAndOutputs compute_loss(Model&, const Inputs& inputs) override { return {inputs["pixel_values"].sum()}; }
    };
    const std::string text =
        place() +
        "batch: there is no \"pixel_values\", the collate function returned \"labels\" and \"x\"; use "
        "one of these, or let the collate function return that one too";
    CHECK(refusal([] { Wrong(OneWeight(), {}, {.train_dataset = triples(2)}).train(); }) == text);
    CHECK(refusal([] { Wrong(OneWeight(), {}, {.eval_dataset = triples(2)}).evaluate(); }) == text);
  });
}

TEST_CASE("missing labels in a later batch, and a loss per example, are reported with the rank") {
  simulate(2, [] {
    const auto place = here(accelerate::Accelerator().process_index(), 2);
    const auto only_first = accelerate::data::map(triples(4), [](const Inputs& inputs) {
      return inputs["x"][0].item<double>() > 0.5 ? Inputs{{"x", inputs["x"]}} : inputs;
    });
    struct Loss : QuietTrainer {
      using QuietTrainer::QuietTrainer;
      LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
        const auto outputs = model(inputs["x"]);
        return {per_example ? outputs : outputs.sum(), outputs};
      }
      bool per_example = false;
    };
    Loss trainer(OneWeight(), {.per_device_eval_batch_size = 1});
    CHECK(
        refusal([&] { trainer.predict(only_first); }) ==
        place +
            "batch: there is no \"labels\", the collate function returned \"x\"; use one of these, or let the collate "
            "function return that one too");
    Loss each(OneWeight(), {.per_device_eval_batch_size = 2}, {.eval_dataset = triples(4)});
    each.per_example = true;
    CHECK(refusal([&] { each.evaluate(); }) ==
          place + "compute_loss: the loss has 2 elements, must have 1; take its mean() or sum() first");
  });
}

TEST_CASE("callbacks that compare evaluations require evaluations") {
  const std::string reason =
      ": eval_strategy is no; only evaluations during training determine which model is best: give eval_strategy steps "
      "or "
      "epoch";
  const auto begun_with = [](std::shared_ptr<TrainerCallback> callback) {
    return refusal([&] {
      QuietTrainer(OneWeight(), {}, {.train_dataset = triples(1), .callbacks = {std::move(callback)}}).train();
    });
  };
  CHECK(begun_with(std::make_shared<EarlyStoppingCallback>()) == here() + "EarlyStoppingCallback" + reason);
  CHECK(begun_with(std::make_shared<BestModelCallback>()) == here() + "BestModelCallback" + reason);
  CHECK(refusal([] { EarlyStoppingCallback(0); }) == "EarlyStoppingCallback: patience is 0, must be at least 1");
  CHECK(refusal([] { EarlyStoppingCallback(1, -0.5); }) ==
        "EarlyStoppingCallback: threshold is -0.5, must be at least 0");
}

TEST_CASE("the error names the missing parts of an evaluation") {
  CHECK(refusal([] { QuietTrainer(OneWeight(), {}).evaluate(); }) ==
        here() + "evaluate: eval_dataset is not set; set it in TrainerParts, or pass one to evaluate()");
  CHECK(refusal([] { QuietTrainer(OneWeight(), {}).predict(nullptr); }) == here() + "predict: the data set is null");
  CHECK(refusal([] { QuietTrainer(OneWeight(), {}).predict(triples(0)); }) ==
        here() + "test: the data set has no examples");
  QuietTrainer labels(OneWeight(), {.label_names = {"labels", "starts"}},
                      {.eval_dataset = triples(1), .compute_metrics = errors});
  CHECK(refusal([&] { labels.evaluate(); }) ==
        here() +
            "label_names: there is no \"starts\" in the batch, the collate function returned \"labels\" and \"x\"; "
            "compute_metrics needs label_names");
  struct NoOutputs : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override { return {model(inputs["x"]).sum()}; }
  };
  NoOutputs outputs(OneWeight(), {}, {.eval_dataset = triples(1), .compute_metrics = errors});
  CHECK(refusal([&] { outputs.evaluate(); }) ==
        here() +
            "compute_loss: the outputs are undefined; compute_metrics and predict() need them: return {loss, outputs}");
}

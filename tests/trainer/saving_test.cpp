// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <unistd.h>

#include <fstream>
#include <iterator>

#include "accelerate/base/log.hpp"
#include "accelerate/base/remove_tree.hpp"
#include "accelerate/trainer/saved_state.hpp"
#include "tests/build_folder.hpp"
#include "tests/trainer/support.hpp"

using namespace trainer_testing;
using accelerate::simulate;
namespace fs = std::filesystem;

namespace {

/// A folder path that does not exist before and after the test.
struct OutputDir {
  OutputDir() { accelerate::base::remove_tree(path); }
  ~OutputDir() { accelerate::base::remove_tree(path); }
  [[nodiscard]] std::vector<std::string> checkpoints() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path / "checkpoints")) {
      if (entry.path().filename().string().starts_with("checkpoint_")) names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  fs::path path = fs::path(testing::build_folder()) / fmt::format("trainer_saving_{}", getpid());
};

/// 2 epochs of 7 examples: on two ranks 4 micro-batches and 2 steps each; saved after every step.
TrainingArguments saving_to(const fs::path& folder) {
  return {.per_device_train_batch_size = 1,
          .num_train_epochs = 2,
          .gradient_accumulation_steps = 2,
          .learning_rate = 0.1,
          .logging_steps = 1,
          .output_dir = folder,
          .save_strategy = IntervalStrategy::steps,
          .save_steps = 1};
}

/// Two epochs of two steps, each evaluated by "score" and saved.
TrainingArguments scored_in(const fs::path& folder) {
  return {.per_device_train_batch_size = 1,
          .num_train_epochs = 2,
          .learning_rate = 0.1,
          .eval_strategy = IntervalStrategy::steps,
          .eval_steps = 1,
          .output_dir = folder,
          .save_strategy = IntervalStrategy::steps,
          .save_steps = 1,
          .metric_for_best_model = "score"};
}

/// Evaluations return these values in order.
TrainerParts scored(std::vector<double> values, std::vector<std::shared_ptr<TrainerCallback>> callbacks = {}) {
  return {.train_dataset = triples(2),
          .eval_dataset = triples(2),
          .compute_metrics =
              [values = std::move(values), next = std::make_shared<size_t>(0)](const accelerate::EvalPrediction&) {
                return Metrics{{"score", values.at((*next)++)}};
              },
          .callbacks = std::move(callbacks)};
}

/// Collects log lines during its lifetime.
struct LinesOfLog {
  LinesOfLog() {
    before = accelerate::base::set_log_handler([this](auto, std::string_view line) { lines.emplace_back(line); });
  }
  ~LinesOfLog() { accelerate::base::set_log_handler(before); }
  accelerate::base::LogHandler before;
  Strings lines;
};

}  // namespace

TEST_CASE("a training that resumes after any step ends with the same weights, to the last bit") {
  const OutputDir folder;
  simulate(2, [&] {
    QuietTrainer whole(OneWeight(), saving_to(folder.path), {.train_dataset = triples(7)});
    CHECK(whole.train().global_step == 4);
    const auto names = folder.checkpoints();
    REQUIRE(names.size() == 4);
    for (size_t step = 1; step <= 4; ++step) {
      CAPTURE(step);
      auto arguments = saving_to(folder.path);
      arguments.save_strategy = IntervalStrategy::no;
      arguments.resume_from_checkpoint = folder.path / "checkpoints" / names[step - 1];
      QuietTrainer rest(OneWeight(), arguments, {.train_dataset = triples(7)});
      CHECK(rest.train().global_step == 4);
      CHECK(rest.weight() == whole.weight());
      CHECK(rest.state().epoch == 2);
      CHECK(rest.state().log_history.size() == whole.state().log_history.size());
    }
  });
}

TEST_CASE("another world size can resume if a step has as many samples, otherwise it is refused") {
  const OutputDir folder;
  auto arguments = saving_to(folder.path);  // a step takes 2 samples
  QuietTrainer whole(OneWeight(), arguments, {.train_dataset = triples(8)});
  CHECK(whole.train().global_step == 8);
  for (const int64_t step : {2, 5}) {
    CAPTURE(step);
    arguments.save_strategy = IntervalStrategy::no;
    arguments.resume_from_checkpoint = folder.path / "checkpoints" / fmt::format("checkpoint_{}", step - 1);
    simulate(2, [&] {
      auto as_many = arguments;
      as_many.gradient_accumulation_steps = 1;
      QuietTrainer rest(OneWeight(), as_many, {.train_dataset = triples(8)});
      CHECK(rest.train().global_step == 8);
      CHECK(rest.state().epoch == 2);
      CHECK(rest.weight() == doctest::Approx(whole.weight()));
      QuietTrainer others(OneWeight(), arguments, {.train_dataset = triples(8)});
      CHECK(
          refusal([&] { others.train(); })
              .find(
                  "resume_from_checkpoint: a step of the checkpoint's training takes 2 samples, a step of this one 4: "
                  "ranks times per_device_train_batch_size times gradient_accumulation_steps must be the same") !=
          std::string::npos);
      CHECK(others.weight() == 0);
    });
  }
}

TEST_CASE("a training that a callback ends between two saves is saved at its end") {
  struct EndsAt : TrainerCallback {
    void on_step_end(const TrainerContext& now, TrainerControl& control) override {
      if (now.state.global_step == 3) control.should_training_stop = true;
    }
  };
  const OutputDir folder;
  auto arguments = saving_to(folder.path);
  arguments.save_steps = 2;
  const TrainerParts parts{.train_dataset = triples(7), .callbacks = {std::make_shared<EndsAt>()}};
  QuietTrainer whole(OneWeight(), arguments, parts);
  CHECK(whole.train().global_step == 3);
  CHECK(folder.checkpoints() == Strings{"checkpoint_0", "checkpoint_1"});
  arguments.resume_from_checkpoint = folder.path;
  QuietTrainer over(OneWeight(), arguments, {.train_dataset = triples(7)});
  CHECK(over.train().global_step == 3);
  CHECK(over.weight() == whole.weight());
}

TEST_CASE("a further train() continues with the weights of a resumed one, as without resuming") {
  const OutputDir folder;
  QuietTrainer whole(OneWeight(), saving_to(folder.path), {.train_dataset = triples(7)});
  whole.train();
  const double once = whole.weight();
  CHECK(whole.train().global_step == 8);
  const double twice = whole.weight();
  CHECK(twice != once);
  auto arguments = saving_to(folder.path);
  arguments.save_strategy = IntervalStrategy::no;
  arguments.resume_from_checkpoint = folder.path / "checkpoints" / "checkpoint_2";
  const auto recorder = std::make_shared<Recorder>();
  QuietTrainer rest(OneWeight(), arguments, {.train_dataset = triples(7), .callbacks = {recorder}});
  CHECK(rest.train().global_step == 8);
  CHECK(rest.weight() == once);
  CHECK(recorder->steps == std::vector<int64_t>{4, 5, 6, 7, 8});
  CHECK(rest.train().global_step == 8);
  CHECK(rest.weight() == twice);
  CHECK(recorder->steps == std::vector<int64_t>{4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8});
}

TEST_CASE("a resumed training that threw resumes from its own checkpoint in the folder") {
  struct Stumbles : TrainerCallback {
    explicit Stumbles(int64_t at) : step(at) {}
    void on_step_end(const TrainerContext& now, TrainerControl&) override {
      if (now.state.global_step != step) return;
      step = 0;
      throw std::runtime_error("stumbled");
    }
    int64_t step;
  };
  const OutputDir folder;
  QuietTrainer whole(OneWeight(), saving_to(folder.path / "whole"), {.train_dataset = triples(7)});
  whole.train();
  QuietTrainer first(OneWeight(), saving_to(folder.path),
                     {.train_dataset = triples(7), .callbacks = {std::make_shared<Stumbles>(2)}});
  CHECK_THROWS_WITH(first.train(), "stumbled");
  CHECK(folder.checkpoints() == Strings{"checkpoint_0"});
  auto arguments = saving_to(folder.path);
  for (const bool whole_folder : {false, true}) {
    CAPTURE(whole_folder);
    arguments.save_strategy = whole_folder ? IntervalStrategy::steps : IntervalStrategy::no;
    arguments.resume_from_checkpoint = whole_folder ? folder.path : folder.path / "checkpoints" / "checkpoint_0";
    const auto recorder = std::make_shared<Recorder>();
    QuietTrainer rest(OneWeight(), arguments,
                      {.train_dataset = triples(7), .callbacks = {recorder, std::make_shared<Stumbles>(4)}});
    CHECK_THROWS_WITH(rest.train(), "stumbled");
    CHECK(rest.train().global_step == 8);
    CHECK(rest.weight() == whole.weight());
    CHECK(recorder->steps == (whole_folder ? std::vector<int64_t>{2, 3, 4, 4, 5, 6, 7, 8}
                                           : std::vector<int64_t>{2, 3, 4, 2, 3, 4, 5, 6, 7, 8}));
  }
}

TEST_CASE("checkpoints follow their strategy and limit, and the newest of a folder is resumed") {
  const OutputDir folder;
  auto recorder = std::make_shared<Recorder>();
  auto arguments = saving_to(folder.path);
  arguments.save_strategy = IntervalStrategy::epoch;
  arguments.num_train_epochs = 3;
  arguments.save_total_limit = 2;
  QuietTrainer(OneWeight(), arguments, {.train_dataset = triples(4), .callbacks = {recorder}}).train();
  CHECK(std::count(recorder->seen.begin(), recorder->seen.end(), "save") == 3);
  CHECK(folder.checkpoints().size() == 2);
  arguments.num_train_epochs = 4;
  arguments.resume_from_checkpoint = folder.path;
  QuietTrainer longer(OneWeight(), arguments, {.train_dataset = triples(4)});
  CHECK(longer.train().global_step == 8);
  CHECK(longer.state().epoch == 4);
}

TEST_CASE("the output folder of another run is refused, the trainer's own is accepted") {
  const OutputDir folder;
  QuietTrainer first(OneWeight(), saving_to(folder.path), {.train_dataset = triples(2)});
  first.train();
  first.train();
  QuietTrainer second(OneWeight(), saving_to(folder.path), {.train_dataset = triples(2)});
  CHECK(
      refusal([&] { second.train(); }) ==
      here() + "train: " + (folder.path / "checkpoints").string() +
          " contains checkpoints of another run; set resume_from_checkpoint to continue it, or use another output_dir");
}

TEST_CASE("load_best_model_at_end loads the best evaluation's weights from disk") {
  const OutputDir folder;
  simulate(2, [&] {
    std::vector<double> losses{3, 1, 2, 2}, weights;
    QuietTrainer* trainer = nullptr;
    QuietTrainer made(OneWeight(),
                      {.per_device_train_batch_size = 1,
                       .num_train_epochs = 4,
                       .learning_rate = 0.1,
                       .eval_strategy = IntervalStrategy::epoch,
                       .output_dir = folder.path,
                       .load_best_model_at_end = true,
                       .metric_for_best_model = "badness",
                       .greater_is_better = false},
                      {.train_dataset = triples(2),
                       .eval_dataset = triples(2),
                       .compute_metrics = [&](const accelerate::EvalPrediction&) {
                         weights.push_back(trainer->weight());
                         return Metrics{{"badness", losses.at(weights.size() - 1)}};
                       }});
    trainer = &made;
    made.train();
    CHECK(made.state().best_metric == 1);
    CHECK(made.weight() == weights.at(1));
    CHECK(made.weight() != weights.at(3));
  });
  CHECK(fs::exists(folder.path / "best_model" / "model.safetensors"));
}

TEST_CASE("a state is restored exactly, including numbers outside JSON") {
  accelerate::TrainerState state{.epoch = 1.5,
                                 .global_step = 7,
                                 .log_history = {{{"loss", std::nan("")}, {"norm", INFINITY}, {"\xff", 1}}},
                                 .best_metric = 0.1,
                                 .best_global_step = 5};
  accelerate::TrainerState back{.max_steps = 9};
  CHECK(accelerate::trainer::load_trainer_state(back, accelerate::trainer::saved(state, true)));
  CHECK_FALSE(accelerate::trainer::load_trainer_state(back, accelerate::trainer::saved(state)));
  const std::string older =
      R"({"epoch": 1, "global_step": 2, "best_global_step": 0, "best_metric": null, "log_history": []})";
  accelerate::TrainerState of_older;
  CHECK_FALSE(accelerate::trainer::load_trainer_state(of_older, older));
  CHECK(back.epoch == 1.5);
  CHECK(back.global_step == 7);
  CHECK(back.max_steps == 9);
  CHECK(back.best_metric == 0.1);
  CHECK(back.best_global_step == 5);
  CHECK(std::isnan(back.log_history.at(0).at("loss")));
  CHECK(back.log_history.at(0).at("norm") == INFINITY);
  CHECK(refusal([&] {
          accelerate::trainer::load_trainer_state(back, "{}");
        }).starts_with("resume_from_checkpoint: the checkpoint's state is not a Trainer's: "));
}

TEST_CASE("the best weights are part of the checkpoint and are restored in another output folder too") {
  const OutputDir folder;
  simulate(2, [&] {
    auto arguments = scored_in(folder.path / "a");
    arguments.num_train_epochs = 4;  // one step per epoch on two ranks
    arguments.load_best_model_at_end = true;
    QuietTrainer whole(OneWeight(), arguments, scored({1, 5, 2, 3}));
    whole.train();
    CHECK(whole.state().best_global_step == 2);
    arguments.output_dir = folder.path / "b";
    arguments.resume_from_checkpoint = folder.path / "a" / "checkpoints" / "checkpoint_2";
    QuietTrainer rest(OneWeight(), arguments, scored({3}));
    rest.train();
    CHECK(rest.state().best_metric == 5);
    CHECK(rest.weight() == whole.weight());
  });
  CHECK(fs::exists(folder.path / "b" / "best_model" / "model.safetensors"));
}

TEST_CASE("resuming an earlier checkpoint restores its best, although best_model has changed") {
  const OutputDir folder;
  auto arguments = scored_in(folder.path);
  arguments.load_best_model_at_end = true;
  std::vector<double> after;  // the weight after each step
  struct Weighing : TrainerCallback {
    explicit Weighing(std::vector<double>& to) : weights(to) {}
    void on_step_end(const TrainerContext& now, TrainerControl&) override {
      weights.push_back(now.trainer.parameters().front().item<double>());
    }
    std::vector<double>& weights;
  };
  QuietTrainer whole(OneWeight(), arguments, scored({2, 1, 5, 1}, {std::make_shared<Weighing>(after)}));
  whole.train();
  CHECK(whole.weight() == after.at(2));
  arguments.resume_from_checkpoint = folder.path / "checkpoints" / "checkpoint_1";
  QuietTrainer rest(OneWeight(), arguments, scored({1, 1}));
  rest.train();
  CHECK(rest.state().best_metric == 2);
  CHECK(rest.weight() == after.at(0));
}

TEST_CASE("without best weights in a checkpoint, the best starts with later evaluations, with a log line") {
  const OutputDir folder;
  auto arguments = scored_in(folder.path);
  QuietTrainer(OneWeight(), arguments, scored({5, 1, 1, 1})).train();
  arguments.load_best_model_at_end = true;
  arguments.resume_from_checkpoint = folder.path / "checkpoints" / "checkpoint_1";
  QuietTrainer rest(OneWeight(), arguments, scored({3, 2}));
  const LinesOfLog log;
  rest.train();
  CHECK(rest.state().best_metric == 3);
  CHECK(rest.state().best_global_step == 3);
  CHECK(log.lines == Strings{here() + "resume_from_checkpoint: " + arguments.resume_from_checkpoint->string() +
                             " has no weights of its best evaluation, after step 1: it was saved without "
                             "load_best_model_at_end; only the best of the following evaluations will be loaded"});
}

TEST_CASE("BestModelCallback's copy and EarlyStoppingCallback's count are saved and restored") {
  using accelerate::BestModelCallback;
  using accelerate::EarlyStoppingCallback;
  const OutputDir folder;
  simulate(2, [&] {
    const auto callbacks = [] {
      return std::vector<std::shared_ptr<TrainerCallback>>{std::make_shared<EarlyStoppingCallback>(3),
                                                           std::make_shared<EarlyStoppingCallback>(9),
                                                           std::make_shared<BestModelCallback>()};
    };
    auto arguments = scored_in(folder.path);
    arguments.num_train_epochs = 20;
    arguments.lr_scheduler_type = accelerate::SchedulerType::constant;
    QuietTrainer whole(OneWeight(), arguments, scored({5, 1, 2, 1}, callbacks()));
    CHECK(whole.train().global_step == 4);
    arguments.resume_from_checkpoint = folder.path / "checkpoints" / "checkpoint_2";
    QuietTrainer rest(OneWeight(), arguments, scored({1, 6, 6, 6}, callbacks()));
    CHECK(rest.train().global_step == 4);
    CHECK(rest.weight() == whole.weight());
  });
}

TEST_CASE("an epoch that ended early is over for a resumed training too") {
  struct EndsTheFirst : TrainerCallback {
    void on_step_end(const TrainerContext& now, TrainerControl& control) override {
      if (now.state.global_step == 1) control.should_epoch_stop = true;
    }
  };
  const OutputDir folder;
  TrainingArguments arguments{.per_device_train_batch_size = 1,
                              .max_steps = 7,
                              .learning_rate = 0.1,
                              .output_dir = folder.path,
                              .save_strategy = IntervalStrategy::epoch};
  const TrainerParts parts{.train_dataset = triples(4), .callbacks = {std::make_shared<EndsTheFirst>()}};
  QuietTrainer whole(OneWeight(), arguments, parts);
  whole.train();
  CHECK(whole.state().epoch == 2.5);
  arguments.resume_from_checkpoint = folder.path / "checkpoints" / "checkpoint_0";
  QuietTrainer rest(OneWeight(), arguments, parts);
  CHECK(rest.train().global_step == 7);
  CHECK(rest.state().epoch == 2.5);
  CHECK(rest.weight() == whole.weight());
}

TEST_CASE("the checkpoint of a step that ends its epoch early belongs to the next epoch") {
  struct EndsEach : TrainerCallback {
    void on_step_end(const TrainerContext& now, TrainerControl& control) override {
      if (now.state.global_step % 2 == 1) control.should_epoch_stop = true;
    }
  };
  const OutputDir folder;
  auto arguments = saving_to(folder.path);
  arguments.gradient_accumulation_steps = 1;
  arguments.num_train_epochs = 3;
  simulate(2, [&] {
    const TrainerParts parts{.train_dataset = triples(7), .callbacks = {std::make_shared<EndsEach>()}};
    QuietTrainer whole(OneWeight(), arguments, parts);
    const int64_t steps = whole.train().global_step;
    const auto names = folder.checkpoints();
    REQUIRE(std::ssize(names) == steps);
    for (const auto& name : names) {
      CAPTURE(name);
      auto again = arguments;
      again.save_strategy = IntervalStrategy::no;
      again.resume_from_checkpoint = folder.path / "checkpoints" / name;
      QuietTrainer rest(OneWeight(), again, parts);
      CHECK(rest.train().global_step == steps);
      CHECK(rest.weight() == whole.weight());
    }
  });
}

TEST_CASE("a training that a callback ended stays ended after resuming unless a callback continues it") {
  struct GoesOn : TrainerCallback {
    void on_train_begin(const TrainerContext&, TrainerControl& control) override {
      control.should_training_stop = false;
    }
  };
  const OutputDir folder;
  auto arguments = scored_in(folder.path);
  const auto ends = [] { return std::make_shared<accelerate::EarlyStoppingCallback>(1); };
  QuietTrainer whole(OneWeight(), arguments, scored({5, 1}, {ends()}));
  CHECK(whole.train().global_step == 2);
  arguments.resume_from_checkpoint = folder.path;
  for (int restart = 0; restart < 2; ++restart) {
    QuietTrainer rest(OneWeight(), arguments, scored({}, {ends()}));
    CHECK(rest.train().global_step == 2);
    CHECK(rest.weight() == whole.weight());
  }
  QuietTrainer further(OneWeight(), arguments, scored({6, 7}, {std::make_shared<GoesOn>()}));
  CHECK(further.train().global_step == 4);
}

TEST_CASE("resuming from any step keeps the best weights, although an epoch's evaluation follows a save") {
  for (const int64_t ranks : {1, 2}) {
    for (const std::vector<double>& scores : {std::vector<double>{3, 1, 2}, {1, 3, 2}, {1, 2, 3}}) {
      CAPTURE(ranks);
      CAPTURE(scores);
      const OutputDir folder;
      auto arguments = scored_in(folder.path / "whole");
      arguments.num_train_epochs = 3;
      arguments.eval_strategy = IntervalStrategy::epoch;
      arguments.eval_steps.reset();
      arguments.load_best_model_at_end = true;
      const auto steps_of_epoch = static_cast<size_t>(2 / ranks);
      simulate(ranks, [&] {
        QuietTrainer whole(OneWeight(), arguments, scored(scores));
        whole.train();
        for (size_t step = 1; step <= 3 * steps_of_epoch; ++step) {
          CAPTURE(step);
          auto again = arguments;
          again.output_dir = folder.path / std::to_string(step);
          again.save_strategy = IntervalStrategy::no;
          again.resume_from_checkpoint = folder.path / "whole" / "checkpoints" / fmt::format("checkpoint_{}", step - 1);
          const auto evaluated = static_cast<std::ptrdiff_t>(step / steps_of_epoch);
          QuietTrainer rest(OneWeight(), again, scored({scores.begin() + evaluated, scores.end()}));
          rest.train();
          CHECK(rest.weight() == whole.weight());
          CHECK(rest.state().best_metric == 3);
          CHECK(rest.state().best_global_step == whole.state().best_global_step);
          CHECK(rest.state().log_history.size() == whole.state().log_history.size());
        }
      });
    }
  }
}

TEST_CASE("a training that an epoch's evaluation ended stays ended, resumed from that epoch's last save") {
  const OutputDir folder;
  auto arguments = scored_in(folder.path);
  arguments.num_train_epochs = 9;
  arguments.eval_strategy = IntervalStrategy::epoch;
  arguments.eval_steps.reset();
  arguments.save_steps = 2;
  const auto ends = [] { return std::make_shared<accelerate::EarlyStoppingCallback>(1); };
  const auto recorder = std::make_shared<Recorder>();
  QuietTrainer whole(OneWeight(), arguments, scored({1, 1}, {recorder, ends()}));
  CHECK(whole.train().global_step == 4);
  const Strings of_epoch{"epoch_end", "prediction_step", "log eval", "evaluate", "save"};
  const auto found = std::find(recorder->seen.begin(), recorder->seen.end(), "step_end 2");
  REQUIRE(recorder->seen.end() - found > std::ssize(of_epoch));
  CHECK(Strings(found + 1, found + 1 + std::ssize(of_epoch)) == of_epoch);
  CHECK(folder.checkpoints().size() == 2);
  arguments.resume_from_checkpoint = folder.path;
  for (int restart = 0; restart < 3; ++restart) {
    QuietTrainer rest(OneWeight(), arguments, scored({}, {ends()}));
    CHECK(rest.train().global_step == 4);
    CHECK(rest.weight() == whole.weight());
  }
}

TEST_CASE("a training that max_steps ended within an epoch continues with more steps, twice") {
  for (const int64_t workers : {0, 1}) {
    CAPTURE(workers);
    const OutputDir folder;
    TrainingArguments arguments{.per_device_train_batch_size = 1,
                                .max_steps = 7,
                                .learning_rate = 0.1,
                                .lr_scheduler_type = accelerate::SchedulerType::constant,
                                .eval_strategy = IntervalStrategy::epoch,
                                .output_dir = folder.path / "whole",
                                .dataloader_num_workers = workers};
    const TrainerParts parts{.train_dataset = triples(4), .eval_dataset = triples(2)};
    QuietTrainer whole(OneWeight(), arguments, parts);
    whole.train();
    arguments.output_dir = folder.path;
    arguments.save_strategy = IntervalStrategy::steps;
    for (const int64_t steps : {3, 5, 7}) {
      CAPTURE(steps);
      arguments.max_steps = steps;
      QuietTrainer part(OneWeight(), arguments, parts);
      CHECK(part.train().global_step == steps);
      CHECK(part.state().epoch == static_cast<double>(steps) / 4);
      arguments.resume_from_checkpoint = folder.path;
      if (steps < 7) continue;
      CHECK(part.weight() == whole.weight());
      std::vector<double> evaluated;
      for (const auto& entry : part.state().log_history) {
        if (entry.contains("eval_loss")) evaluated.push_back(entry.at("step"));
      }
      CHECK(evaluated == std::vector<double>{3, 4, 5, 7});
    }
    CHECK(folder.checkpoints().size() == 3);
  }
}

TEST_CASE("the last step is saved, also if epochs that end early make it earlier than planned") {
  struct EndsEach : TrainerCallback {
    void on_step_end(const TrainerContext&, TrainerControl& control) override { control.should_epoch_stop = true; }
  };
  const OutputDir folder;
  auto arguments = saving_to(folder.path);
  arguments.save_steps = 100;
  const TrainerParts parts{.train_dataset = triples(7), .callbacks = {std::make_shared<EndsEach>()}};
  QuietTrainer whole(OneWeight(), arguments, parts);
  CHECK(whole.train().global_step == 2);
  CHECK(folder.checkpoints() == Strings{"checkpoint_0"});
  arguments.resume_from_checkpoint = folder.path;
  QuietTrainer over(OneWeight(), arguments, parts);
  CHECK(over.train().global_step == 2);
  CHECK(over.weight() == whole.weight());
  arguments.num_train_epochs = 3;
  CHECK(QuietTrainer(OneWeight(), arguments, parts).train().global_step == 3);
}

TEST_CASE("after free_memory() a further train() prepares the model anew: ranks train together and save it") {
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    const OutputDir folder;
    simulate(ranks, [&] {
      QuietTrainer undisturbed(OneWeight(), saving_to(folder.path / "undisturbed"), {.train_dataset = triples(8)});
      undisturbed.train();
      undisturbed.train();
      QuietTrainer trainer(OneWeight(), saving_to(folder.path), {.train_dataset = triples(8)});
      const auto& model = trainer.model();
      trainer.train();
      trainer.accelerator().free_memory();
      trainer.train();
      CHECK(trainer.weight() == undisturbed.weight());
      CHECK(model->w.item<double>() == trainer.weight());
      auto arguments = saving_to(folder.path / "resumed");
      arguments.resume_from_checkpoint = folder.path;
      QuietTrainer resumed(OneWeight(), arguments, {.train_dataset = triples(8)});
      resumed.train();
      CHECK(resumed.weight() == trainer.weight());
    });
  }
}

TEST_CASE("resuming elsewhere does not affect another run's checkpoints and best weights") {
  const OutputDir folder;
  auto arguments = saving_to(folder.path / "a");
  QuietTrainer(OneWeight(), arguments, {.train_dataset = triples(2)}).train();
  auto other = scored_in(folder.path / "b");
  other.load_best_model_at_end = true;
  QuietTrainer(OneWeight(), other, scored({1, 2, 3, 4})).train();
  arguments.output_dir = folder.path / "b";
  arguments.save_total_limit = 1;
  arguments.resume_from_checkpoint = folder.path / "a";
  QuietTrainer resumed(OneWeight(), arguments, {.train_dataset = triples(2)});
  CHECK(
      refusal([&] { resumed.train(); }) ==
      here() + "train: " + (folder.path / "b/checkpoints").string() +
          " contains checkpoints of another run; set resume_from_checkpoint to continue it, or use another output_dir");
  other.save_strategy = IntervalStrategy::no;
  QuietTrainer unsaved(OneWeight(), other, scored({1, 2, 3, 4}));
  CHECK(refusal([&] { unsaved.train(); }) ==
        here() + "train: " + (folder.path / "b/best_model").string() +
            " holds the best weights of another run; set another output_dir, or remove it");
  CHECK(std::distance(fs::directory_iterator(folder.path / "b/checkpoints"), fs::directory_iterator()) >= 4);
}

TEST_CASE("a folder of another run on one machine's local disk is refused on every rank") {
  const OutputDir folder;
  QuietTrainer(OneWeight(), saving_to(folder.path / "1"), {.train_dataset = triples(2)}).train();
  simulate(2, [&] {
    const int64_t rank = accelerate::Accelerator().process_index();
    QuietTrainer trainer(OneWeight(), saving_to(folder.path / std::to_string(rank)), {.train_dataset = triples(4)});
    const std::string reason =
        here(1, 2) + "train: " + (folder.path / "1" / "checkpoints").string() +
        " contains checkpoints of another run; set resume_from_checkpoint to continue it, or use another output_dir";
    CHECK(refusal([&] { trainer.train(); }) == (rank == 1 ? reason : here(0, 2) + "train: " + reason));
  });
}

TEST_CASE("with local disks the main process's best weights are used on all ranks") {
  struct Reading : TrainerCallback {
    explicit Reading(fs::path path) : file(std::move(path)) {}
    void on_train_begin(const TrainerContext&, TrainerControl&) override { at_begin = bytes(); }
    [[nodiscard]] std::string bytes() const {
      std::ifstream in(file, std::ios::binary);
      return {std::istreambuf_iterator<char>(in), {}};
    }
    fs::path file;
    std::string at_begin;
  };
  for (const bool each_node : {false, true}) {
    CAPTURE(each_node);
    const OutputDir folder;
    simulate(2, [&] {
      accelerate::Accelerator accelerator;
      const fs::path own = folder.path / std::to_string(accelerator.process_index());
      const auto reading = std::make_shared<Reading>(own / "best_model" / "model.safetensors");
      auto arguments = scored_in(own);
      arguments.num_train_epochs = 4;  // one step per epoch on two ranks
      arguments.load_best_model_at_end = true;
      arguments.save_on_each_node = each_node;
      QuietTrainer whole(OneWeight(), arguments, scored({2, 5, 1, 1}));
      whole.train();
      CHECK(whole.state().best_global_step == 2);
      const std::string of_whole = reading->bytes();
      CHECK_FALSE(of_whole.empty());
      CHECK(accelerator.gather_object(of_whole) == Strings(2, of_whole));
      arguments.resume_from_checkpoint = own / "checkpoints" / "checkpoint_0";  // missing on the second rank
      QuietTrainer rest(OneWeight(), arguments, scored({1, 1, 1}, {reading}));
      rest.train();
      CHECK(rest.state().best_global_step == 1);
      const std::string of_rest = reading->bytes();
      CHECK(of_rest != of_whole);
      CHECK(accelerator.gather_object(of_rest) == Strings(2, of_rest));
      const std::string weight = fmt::format("{}", rest.weight());
      CHECK(accelerator.gather_object(weight) == Strings(2, weight));
      CHECK(rest.weight() != whole.weight());
      // With one checkpoint per machine, each machine needs it for the next run.
      CHECK((reading->at_begin == of_rest) == (accelerator.is_main_process() || each_node));
    });
  }
}

TEST_CASE("a machine without disk space for the best weights is named on every rank, with the folder") {
  struct InTheWay : TrainerCallback {
    explicit InTheWay(std::function<void()> put) : put_it(std::move(put)) {}
    void on_train_begin(const TrainerContext&, TrainerControl&) override { put_it(); }
    std::function<void()> put_it;
  };
  for (const bool is_file : {true, false}) {
    CAPTURE(is_file);
    const OutputDir folder;
    const fs::path theirs = folder.path / "1" / "best_model";
    const auto put = [&] {
      fs::create_directories(is_file ? theirs.parent_path() : theirs / ".model.safetensors");
      if (is_file) std::ofstream(theirs) << "a file";
    };
    const std::string what = is_file ? theirs.string() + " cannot be made: Not a directory"
                                     : (theirs / ".model.safetensors").string() + " cannot be written: Is a directory";
    const std::string reason =
        here(1, 2) + "load_best_model_at_end: " + what + "; the best weights of the main process must be written there";
    simulate(2, [&] {
      const int64_t rank = accelerate::Accelerator().process_index();
      auto arguments = scored_in(folder.path / std::to_string(rank));
      arguments.load_best_model_at_end = true;
      const auto blocks = std::make_shared<InTheWay>(rank == 1 ? std::function<void()>(put) : [] {});
      QuietTrainer trainer(OneWeight(), arguments, scored({1, 2}, {blocks}));
      CHECK(refusal([&] { trainer.train(); }) ==
            (rank == 1 ? reason : here(0, 2) + "load_best_model_at_end: " + reason));
    });
  }
}

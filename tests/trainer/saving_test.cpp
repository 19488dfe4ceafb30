// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <unistd.h>

#include "accelerate/base/remove_tree.hpp"
#include "accelerate/trainer/saved_state.hpp"
#include "tests/build_folder.hpp"
#include "tests/trainer/support.hpp"

using namespace trainer_testing;
using accelerate::simulate;
namespace fs = std::filesystem;

namespace {

/// A folder that is not there before and after.
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

}  // namespace

TEST_CASE("a training that is resumed after any step ends with the same weights, to the last bit") {
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

TEST_CASE("checkpoints follow their strategy, the newest stay, and the newest of a folder is resumed") {
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

TEST_CASE("an output folder of another run is refused, the own one is not") {
  const OutputDir folder;
  QuietTrainer first(OneWeight(), saving_to(folder.path), {.train_dataset = triples(2)});
  first.train();
  first.train();
  QuietTrainer second(OneWeight(), saving_to(folder.path), {.train_dataset = triples(2)});
  CHECK(said([&] { second.train(); }) == here() + "train: " + (folder.path / "checkpoints").string() +
                                             " holds checkpoints of another run; set resume_from_checkpoint to go on "
                                             "with it, or another output_dir");
}

TEST_CASE("load_best_model_at_end brings the best evaluation's weights back from the disk") {
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

TEST_CASE("a state comes back as it was saved, numbers that JSON does not know too") {
  accelerate::TrainerState state{.epoch = 1.5,
                                 .global_step = 7,
                                 .log_history = {{{"loss", std::nan("")}, {"norm", INFINITY}}},
                                 .best_metric = 0.1,
                                 .best_global_step = 5};
  accelerate::TrainerState back{.max_steps = 9};
  accelerate::trainer::load(back, accelerate::trainer::saved(state));
  CHECK(back.epoch == 1.5);
  CHECK(back.global_step == 7);
  CHECK(back.max_steps == 9);
  CHECK(back.best_metric == 0.1);
  CHECK(back.best_global_step == 5);
  CHECK(std::isnan(back.log_history.at(0).at("loss")));
  CHECK(back.log_history.at(0).at("norm") == INFINITY);
  CHECK(said([&] {
          accelerate::trainer::load(back, "{}");
        }).starts_with("resume_from_checkpoint: the checkpoint's state is not a Trainer's: "));
}

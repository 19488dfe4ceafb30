// SPDX-License-Identifier: Apache-2.0
// Common code of the Trainer tests: one weight that learns to multiply by 3.
#pragma once

#include "tests/accelerator/ranks.hpp"
//
#include "accelerate/trainer/trainer.hpp"

namespace trainer_testing {

using accelerate::Inputs;
using accelerate::IntervalStrategy;
using accelerate::LossAndOutputs;
using accelerate::Metrics;
using accelerate::TrainerCallback;
using accelerate::TrainerContext;
using accelerate::TrainerControl;
using accelerate::TrainerParts;
using accelerate::TrainingArguments;
using Example = std::pair<double, double>;
using Strings = std::vector<std::string>;

/// Example i is {x, 3 x} with x = (i + 1) / N.
struct Triples {
  [[nodiscard]] int64_t size() const { return examples; }
  [[nodiscard]] Example get(int64_t i) const {
    const double x = static_cast<double>(i + 1) / static_cast<double>(examples);
    return {x, 3 * x};
  }
  int64_t examples;
};

inline Inputs collate(const std::vector<Example>& examples) {
  std::vector<double> x, labels;
  for (const auto& [one, other] : examples) {
    x.push_back(one);
    labels.push_back(other);
  }
  return {{"x", torch::tensor(x, torch::kDouble)}, {"labels", torch::tensor(labels, torch::kDouble)}};
}

inline accelerate::trainer::Dataset triples(int64_t examples) {
  return accelerate::data::dataset_source(Triples{examples}, collate);
}

struct TripleTrainer : accelerate::Trainer<OneWeight> {
  using Trainer::Trainer;

  LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
    const auto outputs = model(inputs["x"]);
    return {torch::mse_loss(outputs, inputs["labels"]), outputs};
  }
  double weight() { return model()->w.template item<double>(); }
};

/// A Trainer without output.
struct QuietTrainer : TripleTrainer {
  QuietTrainer(const OneWeight& model, const TrainingArguments& arguments, const TrainerParts& parts = {})
      : TripleTrainer(model, arguments, parts) {
    remove_callback<accelerate::PrinterCallback>();
    remove_callback<accelerate::ProgressCallback>();
  }
};

/// Records the events that it receives.
class Recorder : public TrainerCallback {
 public:
  void on_train_begin(const TrainerContext&, TrainerControl&) override { seen.emplace_back("train_begin"); }
  void on_epoch_begin(const TrainerContext&, TrainerControl&) override { seen.emplace_back("epoch_begin"); }
  void on_step_begin(const TrainerContext&, TrainerControl&) override { seen.emplace_back("step_begin"); }
  void on_substep_end(const TrainerContext&, TrainerControl&) override { seen.emplace_back("substep_end"); }
  void on_pre_optimizer_step(const TrainerContext&, TrainerControl&) override {
    seen.emplace_back("pre_optimizer_step");
  }
  void on_optimizer_step(const TrainerContext&, TrainerControl&) override { seen.emplace_back("optimizer_step"); }
  void on_step_end(const TrainerContext& now, TrainerControl&) override {
    seen.push_back(fmt::format("step_end {}", now.state.global_step));
    steps.push_back(now.state.global_step);
  }
  void on_log(const TrainerContext& now, TrainerControl&) override {
    seen.push_back(now.metrics.contains("loss")         ? "log"
                   : now.metrics.contains("train_loss") ? "log train"
                                                        : "log eval");
  }
  void on_prediction_step(const TrainerContext&, TrainerControl&) override { seen.emplace_back("prediction_step"); }
  void on_evaluate(const TrainerContext&, TrainerControl&) override { seen.emplace_back("evaluate"); }
  void on_save(const TrainerContext&, TrainerControl&) override { seen.emplace_back("save"); }
  void on_predict(const TrainerContext&, TrainerControl&) override { seen.emplace_back("predict"); }
  void on_epoch_end(const TrainerContext&, TrainerControl&) override { seen.emplace_back("epoch_end"); }
  void on_train_end(const TrainerContext&, TrainerControl&) override { seen.emplace_back("train_end"); }

  Strings seen;
  std::vector<int64_t> steps;
};

/// Returns the text of the exception, or "".
template <typename Function>
std::string refusal(const Function& function) {
  try {
    function();
  } catch (const accelerate::Error& error) {
    return error.what();
  }
  return "";
}

inline std::string here(int64_t rank = 0, int64_t ranks = 1) {
  return fmt::format("[rank {} of {}, {}] ", rank, ranks, accelerate::base::host_name());
}

}  // namespace trainer_testing

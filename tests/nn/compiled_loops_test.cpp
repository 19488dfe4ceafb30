// SPDX-License-Identifier: Apache-2.0
// Compiled modules in the loops of the library: the Trainer and graphed_step.
#include "tests/nn/compiled_training.hpp"
//
#include <utility>

#include "accelerate/trainer/trainer.hpp"

using namespace compiled_testing;
using accelerate::Accelerator;

namespace {

/// The eager module that compiled_packages.py exported as "mlp".
struct EagerMlpImpl : torch::nn::Module {
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(6, 8));
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(8));
  torch::nn::Linear a = register_module("a", torch::nn::Linear(torch::nn::LinearOptions(8, 8).bias(false)));
  torch::nn::Linear b = register_module("b", torch::nn::Linear(8, 8));
  torch::nn::Linear head = register_module("head", torch::nn::Linear(8, 3));

  explicit EagerMlpImpl(CompiledModule& compiled) {
    to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    const auto values = compiled->named_parameters();
    for (auto& parameter : named_parameters()) {
      if (parameter.key() != "b.weight") parameter.value().copy_(values[parameter.key()]);
    }
    b->weight.copy_(a->weight);
    fc->bias.requires_grad_(false);
  }

  at::Tensor forward(at::Tensor x) {
    x = torch::tanh(a(torch::relu(norm(fc(x)))));
    x = x * torch::linspace(0.5, 1.5, 8).to(torch::kDouble);
    return head(torch::tanh(torch::linear(x, a->weight, b->bias)));  // tied weights
  }
};
TORCH_MODULE(EagerMlp);

/// Regression of 3 sines of the sum of the inputs.
struct Sines {
  [[nodiscard]] int64_t size() const { return 20; }
  [[nodiscard]] std::pair<at::Tensor, at::Tensor> get(int64_t i) const {
    const at::Tensor x = torch::arange(6, torch::kDouble).add(i).sin();
    return {x, torch::arange(1, 4, torch::kDouble).mul(x.sum()).sin()};
  }
};

accelerate::Inputs collate(const std::vector<std::pair<at::Tensor, at::Tensor>>& examples) {
  Values x, labels;
  for (const auto& [one, other] : examples) {
    x.push_back(one);
    labels.push_back(other);
  }
  return {{"x", torch::stack(x)}, {"labels", torch::stack(labels)}};
}

template <typename Net>
struct SineTrainer : accelerate::Trainer<Net> {
  using Base = accelerate::Trainer<Net>;
  SineTrainer(const Net& net, const accelerate::TrainingArguments& arguments, const accelerate::TrainerParts& parts)
      : Base(net, arguments, parts) {
    this->template remove_callback<accelerate::PrinterCallback>();
    this->template remove_callback<accelerate::ProgressCallback>();
  }
  accelerate::LossAndOutputs compute_loss(typename Base::Model& model, const accelerate::Inputs& inputs) override {
    const at::Tensor outputs = model(inputs["x"]);
    return {torch::mse_loss(outputs, inputs["labels"]), outputs};
  }
};

struct TrainerResult {
  double train_loss, eval_loss;
  at::Tensor head;
};

template <typename Net>
TrainerResult train_with_trainer(Net net) {
  const testing::TemporaryFolder folder;
  const auto data = accelerate::data::dataset_source(Sines(), collate);
  SineTrainer<Net> trainer(net,
                           {.per_device_train_batch_size = 5,
                            .per_device_eval_batch_size = 4,
                            .num_train_epochs = 3,
                            .gradient_accumulation_steps = 2,
                            .learning_rate = 0.01,
                            .max_grad_norm = 0.5,
                            .output_dir = folder.path},
                           {.train_dataset = data, .eval_dataset = data});
  const double train_loss = trainer.train().training_loss;
  const double eval_loss = trainer.evaluate().at("eval_loss");
  return {train_loss, eval_loss, net->named_parameters()["head.weight"].detach().clone()};
}

}  // namespace

TEST_CASE("the Trainer trains and evaluates a compiled module as it does the eager module") {
  auto source = compiled_mlp();
  const auto eager = train_with_trainer(EagerMlp(source));
  const auto compiled = train_with_trainer(compiled_mlp());
  CHECK(std::abs(compiled.train_loss - eager.train_loss) < 1e-10);
  CHECK(std::abs(compiled.eval_loss - eager.eval_loss) < 1e-10);
  CHECK(difference(compiled.head, eager.head) < 1e-10);
  CHECK(difference(compiled.head, source->named_parameters()["head.weight"]) > 1e-3);
}

TEST_CASE("graphed_step on a CPU runs a step of a compiled module as the plain loop does") {
  auto net = compiled_mlp();
  Accelerator accelerator({.cpu = true});
  auto adamw = adamw_of(net);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  auto step = accelerator.graphed_step([&, &model = model, &optimizer = optimizer](const at::Tensor& x) {
    optimizer.zero_grad();
    const at::Tensor loss = model(x).square().mean();
    accelerator.backward(loss);
    optimizer.step();
    return loss;
  });
  for (int64_t i = 0; i < kTrainingSteps; ++i) step(part_of_batch(i, 0));
  CHECK(largest_difference(values_of(*net), train_by_hand(1)) < 1e-12);
}

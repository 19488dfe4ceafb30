// SPDX-License-Identifier: Apache-2.0
// A small training for parity.py and the tests that kill it: two layers on batches that are a formula.
//
//   checkpoint_probe train OPTIMIZER LOAD|- STEPS SAVE|-   prints each loss, then draws of LibTorch's generator
#include <accelerate/accelerate.hpp>
#include <cstdio>
#include <string>
#include <vector>

namespace {

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return fc2(torch::tanh(bn(fc1(x)))); }
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(8, 16));
  torch::nn::BatchNorm1d bn = register_module("bn", torch::nn::BatchNorm1d(16));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(16, 2));
};
TORCH_MODULE(Net);

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, std::vector<torch::Tensor> all) {
  namespace optim = torch::optim;
  // Two groups, as fine-tuning has them.
  std::vector<optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector(all.begin(), all.begin() + 2));
  groups.emplace_back(std::vector(all.begin() + 2, all.end()));
  if (name == "sgd") return std::make_unique<optim::SGD>(groups, optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
  if (name == "adam") return std::make_unique<optim::Adam>(groups, optim::AdamOptions(0.01).amsgrad(true));
  if (name == "adamw") return std::make_unique<optim::AdamW>(groups, optim::AdamWOptions(0.01).weight_decay(0.1));
  if (name == "adagrad") return std::make_unique<optim::Adagrad>(groups, optim::AdagradOptions(0.05).lr_decay(0.01));
  if (name == "rmsprop") {
    return std::make_unique<optim::RMSprop>(groups, optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
  }
  throw std::runtime_error("no optimizer " + name);
}

// Exact in float32, so that Python has the same.
torch::Tensor batch(int64_t step, int64_t columns) {
  const auto row = torch::arange(4).unsqueeze(1), column = torch::arange(columns).unsqueeze(0);
  return (row * 31 + column * 17 + step * 7).remainder(13).to(torch::kFloat) / 16 - 0.375;
}

void train(const std::vector<std::string>& arguments) {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(7);
  Net net;
  auto optimizer_of_torch = make_optimizer(arguments[1], net->parameters());
  accelerate::optim::StepLR step_lr(*optimizer_of_torch, 4, 0.5);
  auto [model, optimizer, scheduler] = accelerator.prepare(net, *optimizer_of_torch, step_lr);
  int64_t step = 0;
  if (arguments[2] != "-") {
    accelerator.load_state(arguments[2]);
    step = scheduler->steps();
  }
  for (const int64_t end = step + std::stoll(arguments[3]); step < end; ++step) {
    optimizer.zero_grad();
    auto loss = torch::mse_loss(model(batch(step, 8)), batch(step + 1, 2));
    accelerator.backward(loss);
    optimizer.step();
    scheduler.step();
    std::printf("%.9g\n", loss.item<double>());
  }
  if (arguments[4] != "-") accelerator.save_state(arguments[4]);
  const auto draws = torch::rand({3});
  std::printf("draws %.9g %.9g %.9g\n", draws[0].item<double>(), draws[1].item<double>(), draws[2].item<double>());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    if (arguments.size() != 5 || arguments[0] != "train") throw std::runtime_error("train OPTIMIZER LOAD STEPS SAVE");
    train(arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

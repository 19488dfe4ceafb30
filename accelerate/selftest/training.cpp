// SPDX-License-Identifier: Apache-2.0
#include "accelerate/selftest/checks.hpp"

namespace selftest {
namespace {

using accelerate::Accelerator;

constexpr int64_t kSteps = 5, kRowsOfRank = 4, kFeatures = 3;

struct TinyNetImpl : torch::nn::Module {
  TinyNetImpl() {
    first = register_module("first", torch::nn::Linear(kFeatures, 8));
    second = register_module("second", torch::nn::Linear(8, 1));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::tanh(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(TinyNet);

TinyNet tiny_net() {
  torch::manual_seed(7);
  return TinyNet();
}

// The same on every rank: [steps, all rows, features + 1], the last column is the target.
torch::Tensor all_rows(int64_t ranks) {
  torch::manual_seed(8);
  return torch::rand({kSteps, ranks * kRowsOfRank, kFeatures + 1}, torch::kDouble);
}

torch::Tensor loss_of(const torch::Tensor& out, const torch::Tensor& rows) {
  return torch::mse_loss(out, rows.slice(1, kFeatures));
}

// In plain LibTorch, on one rank, all rows of a step at once.
std::vector<torch::Tensor> trained_alone(const torch::Tensor& rows, const torch::Device& device) {
  TinyNet net = tiny_net();
  net->to(device);
  torch::optim::AdamW optimizer(net->parameters(), 1e-2);
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    loss_of(net(rows[step].slice(1, 0, kFeatures)), rows[step]).backward();
    optimizer.step();
  }
  return net->parameters();
}

void equivalence(Accelerator& accelerator) {
  const torch::Tensor rows = all_rows(accelerator.num_processes()).to(accelerator.device());
  const auto expected = trained_alone(rows, accelerator.device());
  TinyNet net = tiny_net();
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto mine =
        rows[step].slice(0, accelerator.process_index() * kRowsOfRank, (accelerator.process_index() + 1) * kRowsOfRank);
    optimizer.zero_grad();
    accelerator.backward(loss_of(model(mine.slice(1, 0, kFeatures)), mine));
    optimizer.step();
  }
  accelerator.check_synchronized(model);
  for (size_t i = 0; i < expected.size(); ++i) {
    const double apart = (net->parameters()[i] - expected[i]).abs().max().item<double>();
    expect(apart <= 1e-10,
           fmt::format("parameter {} is {:g} from the training on one rank, at most 1e-10 are expected", i, apart));
  }
}

void every_sample_once(Accelerator& accelerator) {
  constexpr int64_t samples = 103;
  auto numbers = accelerate::data::from_tensors(torch::arange(samples), torch::arange(samples),
                                                {.batch_size = 4, .shuffle = true});
  auto loader = accelerator.prepare(numbers);
  std::vector<torch::Tensor> seen;
  for (auto& [data, target] : loader) seen.push_back(accelerator.gather_for_metrics(data).cpu());
  expect_equal(std::get<0>(torch::cat(seen).sort()), torch::arange(samples), "what all ranks read, sorted");
}

void accumulation(Accelerator& accelerator) {
  const torch::Tensor rows = all_rows(accelerator.num_processes()).to(accelerator.device());
  TinyNet net = tiny_net();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto mine =
      rows[0].slice(0, accelerator.process_index() * kRowsOfRank, (accelerator.process_index() + 1) * kRowsOfRank);
  {
    const auto no_sync = accelerator.no_sync(model);
    (loss_of(model(mine.slice(1, 0, kFeatures)), mine) / 2).backward();
  }
  (loss_of(model(mine.slice(1, 0, kFeatures)), mine) / 2).backward();
  optimizer.step();
  accelerator.check_synchronized(model);
}

void bfloat16(Accelerator& accelerator) {
  Accelerator mixed({.mixed_precision = accelerate::Precision::bf16});
  TinyNet net = tiny_net();
  net->to(torch::kFloat);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = mixed.prepare(net, sgd);
  const auto rows = all_rows(accelerator.num_processes())[0].to(mixed.device(), torch::kFloat);
  const auto mine = rows.slice(0, mixed.process_index() * kRowsOfRank, (mixed.process_index() + 1) * kRowsOfRank);
  const double before = loss_of(model(mine.slice(1, 0, kFeatures)), mine).item<double>();
  for (int64_t step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    mixed.backward(loss_of(model(mine.slice(1, 0, kFeatures)), mine));
    optimizer.step();
  }
  const double after = loss_of(model(mine.slice(1, 0, kFeatures)), mine).item<double>();
  mixed.check_synchronized(model);
  const auto losses = mixed.reduce(torch::tensor({before, after}, torch::kDouble).to(mixed.device()));
  expect(losses[1].item<double>() < losses[0].item<double>(),
         fmt::format("the loss went from {:g} to {:g}", losses[0].item<double>(), losses[1].item<double>()));
}

void random_states(Accelerator& accelerator) {
  torch::manual_seed(100 + static_cast<uint64_t>(accelerator.process_index()));
  accelerator.synchronize_rng_states();
  const auto drawn = accelerator.gather(torch::rand({1, 3}).to(accelerator.device())).cpu();
  expect_equal(drawn, drawn[0].repeat({accelerator.num_processes(), 1}), "the random numbers of the ranks");
}

}  // namespace

std::vector<Check> training() {
  return {{"random states synchronised", random_states},
          {"every sample read once, counted once", every_sample_once},
          {"training equals the one on one rank", equivalence},
          {"accumulation without communication", accumulation},
          {"training in mixed precision, bf16", bfloat16}};
}

}  // namespace selftest

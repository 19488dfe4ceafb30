// SPDX-License-Identifier: Apache-2.0
// Ranks with one GPU each over nccl: bench/gpu.sh runs all rank_tests in this way. The other rank tests pass CPU
// tensors. With one GPU the group has one rank: nccl carries the group's operations, and gradients need no reduction.
#include "tests/testing.hpp"
//
#include "tests/accelerator/ranks.hpp"
#include "tests/world.hpp"

using accelerate::Accelerator;
using accelerate::Precision;

namespace {

/// All ranks of the job. Fails without nccl, where these tests would pass without a GPU or use a CPU group.
const accelerate::comm::Group& over_nccl() {
  REQUIRE(testing::world().backend().starts_with("nccl"));
  return testing::world();
}

/// A network with eight parameters, always equal, for images of 6 x 6.
torch::nn::Sequential gpu_net(at::ScalarType dtype) {
  torch::manual_seed(5);
  torch::nn::Sequential net(torch::nn::Conv2d(1, 4, 3), torch::nn::BatchNorm2d(4), torch::nn::ReLU(),
                            torch::nn::Flatten(), torch::nn::Linear(64, 16), torch::nn::Linear(16, 5));
  net->to(dtype);
  return net;
}

at::Tensor gpu_images(int64_t rank, int64_t step) {
  torch::manual_seed(static_cast<uint64_t>(100 * rank + step + 1));
  return torch::randn({4, 1, 6, 6}, torch::kDouble);
}

at::Tensor gpu_loss(const at::Tensor& out) { return (out - 1).pow(2).mean(); }

void check_close(const std::vector<at::Tensor>& ours, const std::vector<at::Tensor>& theirs, double tolerance) {
  REQUIRE(ours.size() == theirs.size());
  for (size_t i = 0; i < ours.size(); ++i) CHECK(torch::allclose(ours[i], theirs[i], tolerance, tolerance));
}

/// Gradients of a linear layer after some steps with one sample per rank: their matrix rank is at most the world size.
std::vector<at::Tensor> gpu_gradients(const accelerate::gradient::CommHook& hook) {
  Accelerator accelerator(over_nccl(), {.comm_hook = hook});
  torch::manual_seed(5);
  torch::nn::Linear net(40, 20);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.0));
  const auto x = torch::linspace(-1, 1, 40).roll(7 * accelerator.process_index()).reshape({1, 40});
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    accelerator.backward(gpu_loss(model(x.to(accelerator.device()))));
    optimizer.step();
  }
  return {net->weight.grad().clone(), net->bias.grad().clone()};
}

/// Losses of twelve steps in fp16.
std::vector<at::Tensor> gpu_losses(bool graphs) {
  Accelerator accelerator(over_nccl(), {.mixed_precision = Precision::fp16});
  auto net = gpu_net(torch::kFloat);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::AdamW(net->parameters(), 0.0078125));
  const auto function = [&, &model = model, &optimizer = optimizer](const at::Tensor& x) {
    optimizer.zero_grad();
    const auto loss = gpu_loss(model(x));
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(model, 1.0);
    optimizer.step();
    return loss;
  };
  auto step = accelerator.graphed_step(function);
  const auto images = gpu_images(accelerator.process_index(), 0).to(accelerator.device(), torch::kFloat);
  std::vector<at::Tensor> seen;
  for (int i = 0; i < 12; ++i) seen.push_back(graphs ? step(images) : function(images).detach());
  CHECK(step.not_captured_reason() == "");
  CHECK(step.graphs() == (graphs ? 1 : 0));
  return seen;
}

}  // namespace

TEST_CASE("collectives work on GPU tensors") {
  Accelerator accelerator(over_nccl(), {});
  REQUIRE(accelerator.device().is_cuda());
  const int64_t rank = accelerator.process_index(), ranks = accelerator.num_processes();
  const auto rows = torch::full({rank + 1, 2}, rank, torch::TensorOptions(accelerator.device()).dtype(torch::kFloat));
  const auto all = over_nccl().all_gather(rows);
  CHECK(all.is_cuda());
  std::vector<at::Tensor> expected;
  for (int64_t r = 0; r < ranks; ++r) expected.push_back(torch::full({r + 1, 2}, r, torch::kFloat));
  CHECK(torch::equal(all.cpu(), torch::cat(expected)));
  const auto sum = rows.narrow(0, 0, 1).clone();
  over_nccl().all_reduce(sum);
  CHECK(torch::equal(sum.cpu(), torch::full({1, 2}, ranks * (ranks - 1) / 2, torch::kFloat)));
}

TEST_CASE("ranks on GPUs train like one process with the whole batch, with SyncBatchNorm") {
  Accelerator accelerator(over_nccl(), {});
  REQUIRE(accelerator.device().is_cuda());
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  auto net = gpu_net(torch::kDouble), whole = gpu_net(torch::kDouble);
  whole->to(accelerator.device());
  CHECK(accelerator.convert_sync_batchnorm(net) == 1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), options));
  torch::optim::SGD stock(whole->parameters(), options);
  for (int64_t step = 0; step < 5; ++step) {
    std::vector<at::Tensor> all;
    for (int64_t rank = 0; rank < accelerator.num_processes(); ++rank) all.push_back(gpu_images(rank, step));
    const auto mine = all[static_cast<size_t>(accelerator.process_index())].to(accelerator.device());
    optimizer.zero_grad();
    accelerator.backward(gpu_loss(model(mine)));
    optimizer.step();
    stock.zero_grad();
    gpu_loss(whole->forward(torch::cat(all).to(accelerator.device()))).backward();
    stock.step();
  }
  check_close(net->parameters(), whole->parameters(), 1e-10);
  check_close(net->buffers(), whole->buffers(), 1e-10);
}

TEST_CASE("ranks with fewer batches join the others' reductions over nccl") {
  Accelerator accelerator(over_nccl(), {.even_batches = false});
  REQUIRE(accelerator.device().is_cuda());
  const int64_t samples = 3, rank = accelerator.process_index(), ranks = accelerator.num_processes();
  const double rate = 0.0078125;
  OneWeight net;
  auto [model, optimizer, loader] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), rate), counting(samples, 1));
  int64_t steps = 0;
  {
    auto join = accelerator.join_uneven_inputs(model);
    for (auto& [x, target] : loader) {
      ++steps;
      CHECK(x.is_cuda());
      optimizer.zero_grad();
      accelerator.backward((model(x) - 3 * x).pow(2).mean());
      optimizer.step();
    }
  }
  CHECK(steps == std::max<int64_t>(0, (samples - rank + ranks - 1) / ranks));
  double w = 0;  // each step uses the sum over the ranks with a sample, divided by the number of all ranks
  for (int64_t first = 0; first < samples; first += ranks) {
    double gradient = 0;
    for (int64_t x = first; x < std::min(samples, first + ranks); ++x) {
      gradient += 2 * (w - 3) * static_cast<double>(x * x);
    }
    w -= rate * gradient / static_cast<double>(ranks);
  }
  CHECK(net->w.item<double>() == doctest::Approx(w).epsilon(1e-12));
}

TEST_CASE("communication hooks compute the mean within their precision over nccl") {
  using namespace accelerate::gradient;
  const auto plain = gpu_gradients({});
  check_close(gpu_gradients(fp16_compress_hook()), plain, 1e-3);
  check_close(gpu_gradients(bf16_compress_hook()), plain, 1e-2);
  const PowerSgdOptions exact{.matrix_approximation_rank = over_nccl().size(), .start_step = 2};
  check_close(gpu_gradients(power_sgd_hook(exact)), plain, 1e-3);
}

TEST_CASE("a graph with its all-reduce over nccl trains like the plain step") {
  check_close(gpu_losses(true), gpu_losses(false), 1e-2);
}

// SPDX-License-Identifier: Apache-2.0
// bench_sharding STRATEGY MODEL [GB/s]: a training step of one model with one sharding strategy, and the memory of a
// rank. With a bandwidth, the process is one rank of two over a simulated wire.
// A process measures one model only, because a later one could reuse memory that an earlier one freed.
#include <accelerate/accelerate.hpp>
#include <cmath>

#include "bench/harness.hpp"
#include "bench/nets.hpp"
#include "bench/resident.hpp"
#include "bench/simulated_wire.hpp"

namespace {

using accelerate::Accelerator;
using accelerate::ShardingStrategy;

/// Trains one batch and returns the loss of this rank.
using Step = std::function<torch::Tensor()>;

struct ModelOptions {
  /// Standard deviation of the initial weights.
  double deviation = 0.02;
  /// If empty, units as the library finds them.
  std::vector<std::string> units{};
};

template <typename Net, typename Loss>
Step training_step(ShardingStrategy strategy, const Net& net, const torch::Tensor& x, const torch::Tensor& y,
                   const Loss& loss, const ModelOptions& options) {
  auto weights = net->named_parameters();
  bench::draw_weights(weights, options.deviation);
  auto accelerator = std::make_shared<Accelerator>(
      accelerate::AcceleratorOptions{.cpu = true, .sharding = strategy, .fsdp_plugin = {.shard_units = options.units}});
  // The loss of a fixed batch hardly changes at this rate, so that every round has the same numbers to compute with.
  auto [model, optimizer] = accelerator->prepare(net, std::make_shared<torch::optim::AdamW>(net->parameters(), 1e-5));
  return [=, model = model, optimizer = optimizer]() mutable {
    optimizer.zero_grad();
    const auto value = loss(model(x), y);
    accelerator->backward(value);
    optimizer.step();
    return value.detach();
  };
}

/// `layers` x Linear(width, width), each followed by ReLU if `relu`.
Step mlp_step(ShardingStrategy strategy, int64_t layers, int64_t width, int64_t batch, bool relu,
              const std::vector<std::string>& units = {}) {
  const auto x = torch::randn({batch, width}), y = torch::randn({batch, width});
  torch::nn::Sequential net;
  for (int64_t i = 0; i < layers; ++i) {
    net->push_back(torch::nn::Linear(width, width));
    if (relu) net->push_back(torch::nn::ReLU());
  }
  const auto loss = [](const auto& output, const auto& target) { return torch::mse_loss(output, target); };
  return training_step(strategy, net, x, y, loss,
                       {.deviation = std::sqrt((relu ? 2.0 : 1.0) / static_cast<double>(width)), .units = units});
}

Step transformer_step(ShardingStrategy strategy, int64_t sequences, int64_t length) {
  const bench::TransformerOptions options{
      .vocabulary = 1000, .length = length, .layers = 8, .heads = 4, .width = 384, .fused_bias = true};
  const auto tokens = torch::randint(options.vocabulary, {sequences, length + 1});
  const auto loss = [](const auto& logits, const auto& y) {
    return torch::cross_entropy_loss(logits.flatten(0, 1), y.flatten());
  };
  return training_step(strategy, bench::Transformer(options), tokens.narrow(1, 0, length).contiguous(),
                       tokens.narrow(1, 1, length).contiguous(), loss, {});
}

/// \param rank  Seed of the batch: every rank has another one.
Step step_of(ShardingStrategy strategy, const std::string& model, int64_t rank) {
  torch::manual_seed(static_cast<uint64_t>(100 + rank));
  if (model == "mlp") return mlp_step(strategy, 16, 1024, 4, true);
  if (model == "tiny") return mlp_step(strategy, 50, 16, 8, false);
  if (model == "tiny-units") return mlp_step(strategy, 50, 16, 8, false, {"*"});
  if (model == "transformer-256") return transformer_step(strategy, 2, 128);
  if (model == "transformer-4096") return transformer_step(strategy, 8, 512);
  throw std::invalid_argument("bench_sharding: there is no model '" + model + "'");
}

ShardingStrategy strategy_of(const std::string& name) {
  using enum ShardingStrategy;
  for (const auto strategy : {no_shard, shard_optim_op, shard_grad_op, full_shard}) {
    if (accelerate::sharding::strategy_name(strategy) == name) return strategy;
  }
  throw std::invalid_argument("bench_sharding: there is no strategy '" + name + "'");
}

}  // namespace

int main(int argc, char** argv) {
  const std::string strategy_name = argc > 1 ? argv[1] : "full_shard";
  const auto strategy = strategy_of(strategy_name);
  const std::string model = argc > 2 ? argv[2] : "mlp";
  if (argc > 3) bench::simulate_wire(std::stod(argv[3]));
  const Accelerator accelerator({.cpu = true});
  const auto over_ranks = [&accelerator](double value, accelerate::comm::ReduceOp op) {
    const auto result = torch::tensor(value, torch::kFloat64);
    accelerator.group().all_reduce(result, op);
    return result.item<double>();
  };
  // Code and buffers that the first model of a process needs are in memory before the baseline is read.
  const Step warm_up = step_of(strategy, "tiny", accelerator.process_index());
  for (int i = 0; i < 3; ++i) warm_up();
  const double before = bench::resident_bytes();
  const Step step = step_of(strategy, model, accelerator.process_index());
  std::vector<bench::Case> cases{bench::timed("step", [&step] { step(); })};
  for (int i = 1; i <= 3; ++i) {
    const double loss = over_ranks(step().item<double>(), accelerate::comm::ReduceOp::mean);
    cases.push_back({"loss-" + std::to_string(i), [loss](int64_t) { return loss; }});
  }
  const auto added_by_two_steps = [&](double (*bytes)(const std::function<void()>&)) {
    return over_ranks(bytes([&step] { step(), step(); }) - before, accelerate::comm::ReduceOp::max);
  };
  cases.push_back({"resident", [&](int64_t) { return added_by_two_steps(bench::resident_bytes_after); }});
  cases.push_back({"peak", [&](int64_t) { return added_by_two_steps(bench::peak_bytes_of); }});
  return bench::serve(accelerator.process_index(),
                      fmt::format("{}, {} {}, AdamW", bench::about(accelerator), strategy_name, model), cases);
}
